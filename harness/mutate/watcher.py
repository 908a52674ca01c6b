"""Sees the calls of a test's groups on a rank: notes them, and changes one. The user's code is not touched."""

from __future__ import annotations

import ctypes
import zlib
from collections import Counter
from types import CodeType
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from everyrank.model.mutation import SEED, STALE, Call, Mutant, Observe, Seen
from everyrank.mutate import operators, ways
from everyrank.mutate.completion import Completion
from everyrank.mutate.lines import location, users_line
from everyrank.mutate.operators import Operation, Tensors

#: At most this many calls of a test are noted.
_MOST = 2000
#: Two results that differ by this many roundings are the same.
_ROUNDINGS = 8


class Watcher:
    """What one rank sees of one test, and what it changes."""

    def __init__(self, watch: Observe, rank: int) -> None:
        self._rank = rank
        self._mutant = watch.mutant
        self._notes = watch.mutant is None or watch.mutant.way == SEED
        self._calls: list[tuple[Call, CodeType, int]] = []
        self._numbers: Counter[tuple[Any, ...]] = Counter()
        self._groups: dict[tuple[int, ...], list[str]] = {}
        self._saved: Tensors = []
        self._landed: bool | None = None
        self._trouble = ""
        self._completion = Completion()

    def stop(self) -> None:
        """See no more calls: the test is over."""
        operators.see_by(None)
        self._completion.stop()

    def seen(self) -> Seen:
        """Return what this rank has seen."""
        calls = [_located(call, code, line) for call, code, line in self._calls]
        return Seen(calls, self._landed, self._trouble)

    def see(self, call: Operation) -> Any:
        """Make a call of a group, or the changed one, and return its Work."""
        if call.name == "barrier":  # there is nothing to change
            return call.run()
        members, group, number = self._key(call)
        if self._notes:
            if len(self._calls) < _MOST:
                self._calls.append((_noted(call, members, group, number), *users_line()))
            return call.run()
        mutant = self._mutant
        is_message = call.name == "send"
        if (
            mutant is None
            or is_message != (mutant.name == "send")
            or (mutant.members, mutant.group) != (members, group)
        ):
            return call.run()
        if (number, call.name) == (mutant.number, mutant.name):
            return self._send(call, mutant) if is_message else self._change(call, mutant, members)
        if number == mutant.source and mutant.way == STALE:
            return self._save(call)
        return call.run()

    def _key(self, call: Operation) -> tuple[list[int], int, int]:
        """Return the ranks of a call, the number of its group among those of these ranks, and the call's own number.

        All ranks of a group count alike; names of groups go on from test to test. A message is its sender's alone.
        """
        members = _members(call.group)
        names = self._groups.setdefault(tuple(members), [])
        if call.group.group_name not in names:
            names.append(call.group.group_name)
        group = names.index(call.group.group_name)
        is_message = call.name == "send"
        key = (is_message, tuple(members), group)
        self._numbers[key] += 1
        return [self._rank] if is_message else members, group, self._numbers[key] - 1

    def _save(self, call: Operation) -> Any:
        """Make the call whose result a later one will have, and keep what comes out (or what is sent)."""
        if call.name == "send":
            self._saved.extend(ways.copies(call.inputs))
            return call.run()
        return self._completion.after(
            [call.run()], call.outputs, lambda: self._saved.extend(ways.copies(call.outputs))
        )

    def _send(self, call: Operation, mutant: Mutant) -> Any:
        stale = self._saved or call.inputs
        sent = stale if mutant.way == STALE else [torch.zeros_like(tensor) for tensor in call.inputs]
        self._landed = not _same(call.inputs, sent)
        return call.run(inputs=sent)

    def _change(self, call: Operation, mutant: Mutant, members: list[int]) -> Any:
        """Make the call as it is, so that all ranks meet, and put another result in place of its own.

        Whoever waits for the Work, or takes the tensors of its future as DDP's reducer does, waits for the change.
        """
        try:
            changed = ways.change(mutant.way, call, members.index(mutant.rank), self._saved)
        except Exception as error:  # tensors that this way does not fit
            self._trouble = f"{type(error).__name__}: {error}"
            return call.run()
        works = [call.run()]
        second: Tensors = []
        if changed.inputs is not None:
            work, second = call.again(changed.inputs, changed.root)
            works.append(work)

        def finish() -> None:
            try:
                results = changed.result(call.outputs, second)
                self._landed = not _same(call.outputs, results)
                for output, result in zip(call.outputs, results, strict=True):
                    output.data.copy_(result)  # a group's backend does not count as a change in place, either
            except Exception as error:
                self._trouble = f"{type(error).__name__}: {error}"

        return self._completion.after(works, call.outputs, finish)


def watch(request: Observe, rank: int) -> Watcher:
    """See the calls of this process's groups from now on, until the watcher stops."""
    watcher = Watcher(request, rank)
    operators.see_by(watcher.see)
    return watcher


def _members(group: Any) -> list[int]:
    try:
        return list(dist.get_process_group_ranks(group))
    except (KeyError, RuntimeError, ValueError):  # a group that torch does not list
        return list(range(group.size()))


def _noted(call: Operation, members: list[int], group: int, number: int) -> Call:
    taken = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in call.inputs]
    made = [tuple(tensor.shape) for tensor in call.outputs] if not call.in_place else []
    return Call(
        members,
        group,
        number,
        call.name,
        "",
        f"{taken} {made} {call.peer} {call.tag}",
        call.reduction,
        call.root,
        _digest(call.inputs),
        ways.fitting(call),
    )


def _located(call: Call, code: CodeType, line: int) -> Call:
    return msgspec.structs.replace(call, location=location(code, line))


def _digest(tensors: Tensors) -> int:
    digest = 0
    for tensor in tensors:
        if tensor.layout is torch.strided and tensor.numel():
            held = tensor.detach().contiguous()
            digest = zlib.crc32(ctypes.string_at(held.data_ptr(), held.nbytes), digest)
    return digest


def _same(tensors: Tensors, others: Tensors) -> bool:
    return len(tensors) == len(others) and all(map(_equal, tensors, others))


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if not tensor.is_floating_point():
        return torch.equal(tensor, other)
    error = _ROUNDINGS * torch.finfo(tensor.dtype).eps
    return torch.allclose(tensor, other, rtol=error, atol=0, equal_nan=True)
