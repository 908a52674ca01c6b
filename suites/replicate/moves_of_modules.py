"""The moves of ``replicate`` on buffers and states, and those that have modules of their own."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from everyrank import current_world
from everyrank.fixtures.failing import InjectedError
from everyrank.suites.arena.groups import NAMES_RANKS, collect, error_of, names_rank, own_group, root, text_of
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check
from everyrank.suites.compare.reference import SEED, mean
from everyrank.suites.moves.move import NEVER, by_model, move, only_if
from everyrank.suites.replicate.arena import LOCAL_BUFFERS, dense
from everyrank.suites.replicate.model import Part, batch, buffer_values, loss, make
from everyrank.suites.replicate.moves_of_parameters import ParameterMoves
from everyrank.suites.replicate.outline import Outline
from everyrank.suites.replicate.sides import FRESH
from everyrank.suites.replicate.wrappers import check_state
from torch import nn

_RATE = 0.1

#: How far values may be off after a few steps with few parameters, in which the order of a sum differs.
_CLOSE = {torch.float64: 1e-12, torch.complex128: 1e-12, torch.float32: 1e-3}

#: Dtypes whose order of a sum shows in the other parameters after a few steps; two ranks have one order.
_COARSE = {2: ("float16", "bfloat16", "complex64"), 3: ("float16", "bfloat16", "complex64", "float32")}


def _setting_needs(outline: Outline, reassigned: bool = False) -> Iterator[str]:
    if reassigned:
        yield "reassigned buffers"
    if outline.quiet:
        yield "buffers in evaluation"
    if not outline.model.buffers:
        yield NEVER


def _evaluating_needs(outline: Outline) -> Iterator[str]:
    yield "buffers in evaluation"


def _evaluated(outline: Outline) -> None:
    outline.quiet = True


def _saving_needs(outline: Outline, inside: bool = False, early: bool = False) -> Iterator[str]:
    if not inside:
        yield "state dicts of what was built"
    if early:
        yield "values as they are built"
        yield from only_if(outline.model.built != "ignored")  # what is ignored starts with other values on each rank
    if outline.trained == early or (inside and outline.model.built == "apart"):
        yield NEVER  # what is built of a part has its names in the state of the whole


def _saved(outline: Outline, **given: Any) -> None:
    outline.saved = True


def _loading_needs(outline: Outline, fresh: bool = False) -> Iterator[str]:
    if not outline.saved or (fresh and outline.model.built == "ignored"):
        yield NEVER  # what is ignored starts with other values on each rank


def _loaded(outline: Outline, fresh: bool = False) -> None:
    if fresh:
        outline.pending = outline.quiet = outline.trained = outline.unsynced = outline.cleared = False
        outline.hooked.clear()


def _uneven_needs(outline: Outline, batches: tuple[int, ...] = (), idle: bool = False) -> Iterator[str]:
    yield "idle ranks" if idle else "uneven inputs"
    if len(batches) != outline.model.size or (idle and len(set(batches)) == 1):
        yield NEVER


def _uneven_batches(outline: Outline) -> list[tuple[int, ...]]:
    return [batches[: outline.model.size] for batches in ((1, 3, 2), (2, 1, 2), (3, 2, 1), (2, 2, 3), (0, 2, 1))]


def _failing_needs(outline: Outline, rank: int = 0, during: str = "") -> Iterator[str]:
    yield "errors"
    if rank not in range(outline.model.size):
        yield NEVER


def _last_rank(outline: Outline) -> int:
    return outline.model.size - 1


#: When a training script fails.
_PHASES = ("forward", "backward", "between")


class ModuleMoves(ParameterMoves):
    """What is done to the module, on both sides."""

    @move(
        "buffers",
        needs=_setting_needs,
        drawn={"reassigned": (False, False, True), "others": (False, True)},
        kinds=({"others": by_model((False, True))}, {"reassigned": True}),
        shown_by="backward",
        often=2,
        writes=("buffer",),
    )
    def set_buffers(self, reassigned: bool = False, others: bool = False) -> None:
        """Give each rank its own values in all buffers; if ``reassigned``, as new tensors.

        ``others``: all ranks but the first, whose values stay.
        """
        for rank, model in self.sides.models:
            if others and rank == 0:
                continue
            for name, buffer in list(model.named_buffers()):
                value = buffer_values(buffer, self.number, rank)
                if reassigned:
                    setattr(model, name, value)
                else:
                    buffer.copy_(value)

    @move("buffers", needs=_evaluating_needs, then=_evaluated, writes=("buffer",), reads=("parameter", "buffer"))
    def evaluate(self) -> None:
        """Run one forward in eval, without gradients."""
        self.sides.evaluate(self.number)
        self.sides.equal = True

    @move(
        "state-dict",
        needs=_saving_needs,
        then=_saved,
        drawn={"inside": (False, True)},
        kinds=({}, {"inside": True}),
        further={1: ({"early": True},)},
        writes=("saved state",),
        reads=("parameter", "buffer", "optimizer state"),
    )
    def save(self, inside: bool = False, early: bool = False) -> None:
        """Copy the state dicts of module and optimizer; if ``inside``, that of the module inside of the wrapper.

        ``early``: nothing was trained so far.
        """
        sides = self.sides
        with subject_acts():
            state = copy.deepcopy((sides.inside if inside else sides.ours).state_dict())
        check_state(state, sides.twin, sides.when)
        states = [optimizer.state_dict() for optimizer in sides.optimizers]
        self.saved = copy.deepcopy((state, [twin.state_dict() for twin in sides.twins.models], states)), inside

    @move(
        "state-dict",
        needs=_loading_needs,
        then=_loaded,
        drawn={"fresh": (False, True)},
        kinds=({}, {"fresh": True}),
        often=2,
        after="save",
        shown_by="backward",
        writes=("parameter", "gradient", "buffer", "optimizer state", "frozen", "sync", "hook"),
        reads=("saved state",),
    )
    def load(self, fresh: bool = False) -> None:
        """Load the last copy into the same objects, or into fresh ones."""
        sides = self.sides
        (state, states, kept), inside = copy.deepcopy(self.saved)
        if fresh:
            sides.begin(FRESH, self.number)
        with subject_acts():
            (sides.inside if inside else sides.ours).load_state_dict(state)
        for twin, twin_state in zip(sides.twins.models, states, strict=True):
            twin.load_state_dict(twin_state)
        for optimizer, optimizer_state in zip(sides.optimizers, kept, strict=True):
            optimizer.load_state_dict(optimizer_state)


class ApartMoves(ModuleMoves):
    """What is done with modules of its own: ranks are done or leave at different times, and leave them unknown."""

    @move("device-id", needs=lambda outline: ["wrong devices"], apart=True)
    def refuse_device(self, given: Any = "cpu") -> None:
        """Build a module like this with an invalid ``device_id``, which must be refused."""
        module = self.sides.model(SEED, 0, 0)
        error = error_of(lambda: self.arena.build(module, device_id=given))
        check(isinstance(error, (RuntimeError, TypeError, ValueError)), f"device_id={given!r} raised {error!r}")
        check("device_id" in str(error), f"the error does not name device_id: {error}")

    @move(
        "uneven",
        needs=_uneven_needs,
        drawn={"batches": _uneven_batches, "idle": (False, False, True)},
        kinds=(
            {"batches": lambda outline: (1, 3, 2)[: outline.model.size]},
            {"batches": lambda outline: (2, 1, 1)[: outline.model.size], "idle": True},
        ),
        apart=True,
    )
    def train_unevenly(self, batches: tuple[int, ...], idle: bool = False) -> None:
        """Train with these numbers of batches: a rank without one counts as zero and all end equal, or others raise.

        A rank that is done enters ``join()``, or leaves if there is none. If ``idle``, it stays and does nothing.
        """
        rank, fewest = self.arena.rank, min(batches)
        done = [other for other, count in enumerate(batches) if count == fewest]
        with own_group() as group:
            module: Any = self._built()
            error = None
            if not idle and callable(getattr(module, "join", None)):
                self._join(module, batches)
                done = []
            else:
                for step in range(batches[rank]):
                    if idle and step == fewest:
                        current_world().barrier()
                        group.shorten_patience()
                    error = error or error_of(partial(self._train, module, step))
                if idle:
                    for _ in range(1 + (batches[rank] == fewest)):
                        current_world().barrier()
                else:
                    group.leave()
            problem = self._not_heard(error, done)
            del module, error  # they hold the group's sockets
            collect()
        check(not problem, problem)

    @move(
        "errors.rank",
        needs=_failing_needs,
        drawn={"rank": lambda outline: range(outline.model.size), "during": _PHASES},
        kinds=tuple({"rank": _last_rank, "during": during} for during in _PHASES),
        apart=True,
    )
    def fail(self, rank: int, during: str) -> None:
        """Let a rank fail in ``forward``, in ``backward`` or ``between`` two steps, and leave: all others raise."""
        culprit = self.arena.rank == rank
        with own_group() as group:
            module = self._built()
            with subject_acts():
                self._train(module, 0)
            current_world().barrier()
            error: Exception | None = InjectedError("between two steps")
            if not culprit or during != "between":
                with _sabotage(self.arena.inside(module), during) if culprit else contextlib.nullcontext():
                    error = error_of(partial(self._train, module, 1))
            group.leave()
            problem = self._not_heard(error, [rank])
            if culprit and not isinstance(root(error), InjectedError):
                problem = f"rank {rank}'s own error did not reach it: {text_of(error)}"
            del module, error
            collect()
        check(not problem, problem)

    def _not_heard(self, error: Exception | None, gone: list[int]) -> str:
        """Return what is wrong with the error of this rank, if any, when these ranks are gone."""
        if self.arena.rank in gone or not gone:
            return ""
        ranks = " or ".join(f"rank {rank}" for rank in gone)
        if error is None:
            return f"trained on, though {ranks} did not"
        named = NAMES_RANKS not in self.subject.declares or any(names_rank(error, rank) for rank in gone)
        return "" if named else f"the error does not name {ranks}: {text_of(error)}"

    def _join(self, module: Any, batches: tuple[int, ...]) -> None:
        twin = self._model()
        for step in range(max(batches)):
            self._reference_step(twin, batches, step)
        named = dict(self.arena.wrappers.parameters(module))
        with subject_acts(), module.join():
            for step in range(batches[self.arena.rank]):
                self._train(module, step)
        for name, expected in twin.named_parameters():
            _check_close(name, named[name].detach(), expected.detach())
        if LOCAL_BUFFERS not in self.subject.declares:
            inside = self.arena.inside(module)
            found = self.arena.meet("buffers after join()", repr([buffer.tolist() for buffer in inside.buffers()]))
            check(
                len(set(found)) == 1,
                f"ranks have different buffers after join(): {' and '.join(dict.fromkeys(found))}",
            )

    def _model(self) -> Part:
        coarse = _COARSE[min(self.model.size, 3)]
        params = tuple(param for param in self.model.params if not param.unused and param.dtype not in coarse)
        still = tuple(buffer for buffer in self.model.buffers if not buffer.moving)
        return make(replace(self.model, params=params, buffers=still, built=""), SEED)

    def _built(self) -> nn.Module:
        with subject_acts():
            return self.arena.build(self._model())

    def _backward(self, module: nn.Module, step: int, rank: int) -> None:
        rows, targets = batch(self.number, step, rank)
        loss(module(rows), targets).backward()

    def _train(self, module: nn.Module, step: int) -> None:
        module.zero_grad()
        self._backward(module, step, self.arena.rank)
        _descend(module)

    def _reference_step(self, twin: Part, batches: tuple[int, ...], step: int) -> None:
        found: list[dict[str, torch.Tensor | None]] = []
        for rank, count in enumerate(batches):
            twin.zero_grad()
            if step < count:
                self._backward(twin, step, rank)
            found.append({name: parameter.grad for name, parameter in twin.named_parameters()})
        for name, parameter in twin.named_parameters():
            parameter.grad = mean([gradients[name] for gradients in found])
        _descend(twin)


def _descend(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(dense(parameter.grad), alpha=_RATE)


@contextlib.contextmanager
def _sabotage(module: nn.Module, phase: str) -> Iterator[None]:
    """Let the training script fail in ``forward`` or in ``backward``."""

    def fail(*_: Any) -> None:
        raise InjectedError(f"in {phase}")

    def fail_in_backward(layer: nn.Module, args: Any, output: Any) -> None:
        output.register_hook(fail)

    layer = module.get_submodule("first")
    handle = layer.register_forward_hook(fail if phase == "forward" else fail_in_backward)
    try:
        yield
    finally:
        handle.remove()


def _check_close(name: str, ours: torch.Tensor, expected: torch.Tensor) -> None:
    if not expected.numel():
        return
    off = float((ours - expected).abs().max())
    check(
        off <= _CLOSE[expected.dtype] * (1 + float(expected.abs().max())),
        f"{name}, after join(), is off by {off:.3g}",
    )
