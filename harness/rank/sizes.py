"""Notes how much this rank gives and takes in those collectives of gloo that accept tensors of unequal sizes.

If a rank takes more than another one gives, gloo fills a part of its tensor, and raises no error. If it takes less,
gloo aborts the process.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from types import CodeType
from typing import Any

from everyrank.rank import point_to_point
from everyrank.rank.group_calls import wrap
from everyrank.stack.frames import Frame, is_users
from everyrank.wire.messages import Sizes

#: The number of a test's first such collectives that are noted.
_MOST = 1000
#: The methods of a group that torch's functions call, and the functions that a user knows. all_to_all_single() calls
#: the first or the second, by the version of torch. all_gather() and all_to_all() compare sizes themselves.
_METHODS = {
    "all_to_all_single": "all_to_all_single",
    "alltoall_base": "all_to_all_single",
    "broadcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
}

#: The noted calls, raw: what a text needs is made of them when the record is filed.
_noted: list[tuple[Any, ...]] = []
#: By name: whether a group is gloo's.
_on_gloo: dict[str, bool] = {}
#: Of calls of the same sizes, the user's line is noted for the first: to look for it takes longer than all else.
_located: set[tuple[Any, ...]] = set()


def begin() -> None:
    """Forget what an earlier test did, and note collectives of all groups from now on."""
    _noted.clear()
    _on_gloo.clear()
    _located.clear()
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    for method, name in _METHODS.items():
        wrap(getattr(c10d, "ProcessGroup", None), method, functools.partial(_noting, name))


def noted() -> list[Sizes]:
    """Return what this rank has given and taken in this test."""
    return [_sizes(*call) for call in _noted]


def _sizes(
    name: str, group: str, rank: int, size: int, number: int, held: Any, parts: Any, line: tuple[CodeType, int] | None
) -> Sizes:
    shape, dtype, held_bytes = held
    (takes, row), (gives, _) = (_by_rank(part, size) for part in parts) if parts else (([held_bytes], 0), ([], 0))
    location = "" if line is None else str(Frame(line[0].co_filename, line[1], line[0].co_name))
    return Sizes(group, rank, size, number, name, takes, gives, row, location, f"{tuple(shape)} {_named(dtype)}")


def _named(dtype: Any) -> str:
    """Return the name of a dtype as torch's flight recorder has it: ``Float``."""
    import torch

    return str(torch.empty(0, dtype=dtype).type()).removeprefix("torch.").removesuffix("Tensor")


def _noting(name: str, call: Any, group: Any, *arguments: Any, **options: Any) -> Any:
    __tracebackhide__ = True
    work = call(group, *arguments, **options)
    if len(_noted) < _MOST and len(arguments) > 1:
        with contextlib.suppress(Exception):  # unusual arguments, that torch takes: nothing is known of them
            _note(name, group, arguments)
    return work


def _note(name: str, group: Any, arguments: tuple[Any, ...]) -> None:
    tensor = arguments[1] if name == "gather" else arguments[0]
    tensor = tensor[0] if isinstance(tensor, (list, tuple)) else tensor
    group_name = group.group_name
    on_gloo = _on_gloo.get(group_name)
    if on_gloo is None:
        on_gloo = _on_gloo[group_name] = _is_on_gloo(group)
    if not on_gloo or not tensor.is_cpu:
        return
    parts = None
    if name == "all_to_all_single":
        output, inputs, *splits = arguments
        taken, sent = splits[:2] if len(splits) > 1 else ((), ())
        parts = ((output.nbytes, len(output), list(taken)), (inputs.nbytes, len(inputs), list(sent)))
    number = group._get_sequence_number_for_group() - point_to_point.within_collectives(group)
    held = (tensor.shape, tensor.dtype, tensor.nbytes)
    sizes = (name, group_name, held[2], str(parts))
    line = None
    if sizes not in _located:
        _located.add(sizes)
        line = _users_line(4)
    _noted.append((name, group_name, group.rank(), group.size(), number, held, parts, line))


def _users_line(up: int) -> tuple[CodeType, int]:
    frame = sys._getframe(up)
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


def _is_on_gloo(group: Any) -> bool:
    import torch

    return bool(group._get_backend(torch.device("cpu")).name() == "gloo")


def _by_rank(part: tuple[int, int, list[int]], size: int) -> tuple[list[int], int]:
    """Return how many bytes of a tensor belong to each rank, and how many a row has: splits count rows."""
    held, rows, splits = part
    row = held // rows if rows else 0
    return [row * split for split in splits] or [held // size] * size, row
