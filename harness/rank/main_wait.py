"""Finds out what the main thread of a rank waits in, from its frames and from the collectives that it has begun.

Whatever is not certain is no wait. Some waits have no frame of their own: then the controller also asks the kernel
how the thread sleeps (``sleep``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import msgspec
from everyrank.rank import recorder
from everyrank.stack.frames import Frame, is_users, only_sees, standing
from everyrank.stack.running import called_name, is_method_without_arguments, running_call
from everyrank.wire.messages import Begun, WitnessStatement

#: torch's functions that return only when other ranks have done their part. monitored_barrier() is not listed, since
#: it fails after its own time limit.
_WAIT = frozenset(
    {
        "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single", "all_reduce",
        "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "gather", "recv", "reduce",
        "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "send", "_all_gather_base",
        "_reduce_scatter_base",
    }
)  # fmt: skip
_BETWEEN_TWO = ("recv", "send")
_ROOTED = ("broadcast", "gather", "reduce", "scatter")
#: The function in which torch makes a group: it returns when all members have met in the store.
_MAKES_GROUP = "_new_process_group_helper"
#: From torch 2.14 on, that function calls this one, which waits.
_MAKES_GLOO = "_create_gloo_process_group"
_FUTURES = re.compile(r"torch/futures/__init__\.py$")


@dataclass(frozen=True)
class Groups:
    """The process groups of this rank."""

    default: Any
    by_name: Mapping[str, Any]
    made_at: Mapping[str, str]

    @classmethod
    def known(cls, default: Any, made_at: Mapping[str, str]) -> Groups:
        """Return the groups that torch lists; only the default group if its private list is gone."""
        import torch.distributed as dist

        world = getattr(dist.distributed_c10d, "_world", None)
        names: Mapping[Any, Any] = getattr(world, "pg_names", {} if default is None else {default: _name(default)})
        return cls(default, {str(name): group for group, name in list(names.items())}, made_at)


class MainWait:
    """The wait of a main thread, which is in ``frame`` and has begun these collectives."""

    def __init__(self, frame: FrameType, begun: list[dict[str, Any]], groups: Groups) -> None:
        self._frame = frame
        self._stack = stack_of(frame)
        self._begun = begun
        self._groups = groups

    def add_to(self, statement: WitnessStatement) -> WitnessStatement:
        """Return the statement with the call that the main thread waits in, if that is certain."""
        import torch.distributed as dist

        innermost = self._stack[0]
        in_c10d = innermost.file == dist.distributed_c10d.__file__
        wait: dict[str, Any] | None
        if in_c10d and innermost.function in _BETWEEN_TWO:
            wait = self._message()
        elif in_c10d and innermost.function in _WAIT:
            wait = self._collective()
        elif in_c10d and (helper := self._making_a_group()) is not None:
            wait = self._new_group(helper.f_locals)
        elif _FUTURES.search(innermost.file) and innermost.function in ("wait", "wait_all"):
            wait = {"kind": "future", "others": self._all_begun(), "sleep": "ever"}
        elif self._begun and (_is_torchs(innermost.file) or self._in_wait_of_user()):
            wait = self._one_of_begun()
        else:
            wait = self._message_in_wait_of_user()
        if wait is None or not self._all_on_gloo(wait):
            return statement
        operation, _, location = standing(self._stack, self._called_by_user()).rpartition(" at ")
        if is_users(innermost.file):
            operation = recorder.collective(self._begun[0]).name if self._begun else "wait"
        group = wait.get("group", "")
        common = {"operation": operation, "location": location, "made_at": self._groups.made_at.get(group, "")}
        if group == _name(self._groups.default):
            common["made_at"] = ""
        patience = min([wait.pop("limit", self._limit()), *(entry["timeout_ms"] / 1000 for entry in self._begun)])
        return msgspec.structs.replace(statement, patience=patience, **common, **wait)

    def _called_by_user(self) -> str:
        """Return the name of what the user's line calls now, if that is certain."""
        frame: FrameType | None = self._frame
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        return called_name(running_call(frame)) if frame is not None else ""

    def _message(self) -> dict[str, Any]:
        arguments = self._frame.f_locals
        group = arguments.get("group") or self._groups.default
        peer = _other_rank(arguments, group)
        tag = int(arguments.get("tag") or 0)
        return {"kind": "message", "group": _name(group), "members": _members(group), "peer": peer, "tag": tag}

    def _message_in_wait_of_user(self) -> dict[str, Any] | None:
        """Return the wait for a message that the user's ``work.wait()`` waits for: neither rank nor kind is known."""
        import torch.distributed as dist

        if self._begun or not self._in_wait_of_user():
            return None
        call = running_call(self._frame)
        value = getattr(getattr(call, "func", None), "value", None)
        work = self._frame.f_locals.get(getattr(value, "id", ""))
        if not isinstance(work, dist.Work):
            return None
        default = self._groups.default
        return {"kind": "message", "group": "", "members": _members(default), "sleep": "timed"}

    def _collective(self) -> dict[str, Any] | None:
        arguments = self._frame.f_locals
        group = arguments.get("group") or self._groups.default
        own = [entry for entry in self._begun if entry["process_group"][0] == _name(group)]
        if not own:
            return None  # the collective has not begun yet, or has just ended
        root = _other_rank(arguments, group) if self._stack[0].function in _ROOTED else None
        number = own[-1]["collective_seq_id"]
        return {"group": _name(group), "members": _members(group), "number": number, "root": root}

    def _making_a_group(self) -> FrameType | None:
        """Return the frame of torch's function that makes a group, if the main thread waits in it."""
        caller = self._frame.f_back if self._stack[0].function == _MAKES_GLOO else self._frame
        return caller if caller is not None and caller.f_code.co_name == _MAKES_GROUP else None

    def _new_group(self, arguments: dict[str, Any]) -> dict[str, Any]:
        members = arguments.get("global_ranks_in_group") or _members(self._groups.default)
        timeout = arguments.get("timeout")
        limit = timeout.total_seconds() if timeout is not None else 0.0
        return {"kind": "group", "members": list(members), "sleep": "polls", "limit": limit}

    def _one_of_begun(self) -> dict[str, Any] | None:
        begun = self._all_begun()
        if begun is None:
            return None
        first, *others = begun
        own = {"group": first.group, "members": first.members, "number": first.number}
        return {**own, "others": others, "sleep": "ever"}

    def _all_begun(self) -> list[Begun] | None:
        """Return the collectives that are not over; None if one is in an unknown group."""
        names = [entry["process_group"][0] for entry in self._begun]
        if any(name not in self._groups.by_name for name in names):
            return None
        return [
            Begun(name, entry["collective_seq_id"], _members(self._groups.by_name[name]))
            for name, entry in zip(names, self._begun, strict=True)
        ]

    def _in_wait_of_user(self) -> bool:
        """Return whether the main thread is in ``something.wait()`` on a line of the user's."""
        return is_users(self._stack[0].file) and is_method_without_arguments(running_call(self._frame), "wait")

    def _all_on_gloo(self, wait: dict[str, Any]) -> bool:
        import torch.distributed as dist

        if wait.get("others", []) is None:
            return False
        names = {wait.get("group", ""), *(begun.group for begun in wait.get("others", []))} - {""}
        groups = [self._groups.by_name.get(name) for name in names] or [self._groups.default]
        return all(group is not None and dist.get_backend(group) == "gloo" for group in groups)

    def _limit(self) -> float:
        """Return the shortest time limit of the groups of gloo, in seconds."""
        import torch
        import torch.distributed as dist

        groups = [group for group in self._groups.by_name.values() if dist.get_backend(group) == "gloo"]
        backends = [group._get_backend(torch.device("cpu")) for group in groups if group is not None]
        return min((backend.options._timeout.total_seconds() for backend in backends), default=0.0)


def _is_torchs(file: str) -> bool:
    import torch

    return file.startswith(os.path.dirname(torch.__file__) + os.sep)


def _name(group: Any) -> str:
    return str(group.group_name)


def _members(group: Any) -> list[int]:
    import torch.distributed as dist

    return list(dist.get_process_group_ranks(group))


def _other_rank(arguments: dict[str, Any], group: Any) -> int | None:
    """Return the root of a collective, or the other rank of a message; None for any rank."""
    for name in ("src", "dst"):
        if arguments.get(name) is not None:
            return int(arguments[name])
    for name in ("group_src", "group_dst"):
        if arguments.get(name) is not None:
            import torch.distributed as dist

            return dist.get_global_rank(group, int(arguments[name]))
    return None


def stack_of(frame: FrameType | None) -> list[Frame]:
    """Return the stack of a thread, innermost frame first."""
    stack = []
    while frame is not None:
        if not only_sees(frame.f_code.co_filename):
            stack.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return stack
