"""All that is known of a step of ``trainer``, besides what it does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from everyrank.suites.moves.move import NEVER, often_nothing, only_if, subsets
from everyrank.suites.trainer.outline import Outline
from everyrank.suites.trainer.skipping import (
    FIRST_RANK,
    NO_RANK,
    SOME_RANKS,
    TURNS,
    by_all,
    by_turns_needs,
    skipping_in_needs,
    skipping_needs,
)

#: A number whose gradient is finite, and whose square is not; nor is it in single precision.
LARGE = "1e200"


def step_needs(outline: Outline, times: int = 1, **given: Any) -> Iterator[str]:
    if outline.closures and (outline.steps + times > 2 or not {"parts", "max_norm"}.issuperset(given)):
        yield NEVER  # LBFGS looks for the minimum several times a step: two orders of a sum are apart after two steps
    if outline.closures and outline.count:
        yield "closures with parameters of no layer"
    if outline.closures and given.get("max_norm") == 0:
        yield NEVER  # of a gradient of zero it computes the loss once
    if outline.spoiled or outline.stood:
        yield NEVER  # nothing can be seen until a state is loaded, or the rate is another
    if outline.missed and (given.get("parts", 1) > 1 or given.get("parts_on")):
        yield "microbatches after errors"
        if given.get("parts_on"):
            yield "ranks that differ after errors"  # DDP averages the first of several microbatches there
    if outline.added and outline.rate_hooked:
        yield "options of groups that were just added"


def _several(outline: Outline) -> str:
    return "sparse microbatches" if outline.sparse else "microbatches"


def _parts_on_needs(outline: Outline, parts: int, skips_in: tuple[int, ...]) -> Iterator[str]:
    yield _several(outline)
    yield "other numbers of microbatches on other ranks"
    # The number of forwards would be that of the rank whose buffers count.
    yield from only_if(parts == 1 and not (skips_in or outline.model.counts))


def _clipping_needs(outline: Outline, parts: int, parts_on: tuple[int, ...]) -> Iterator[str]:
    yield "clipping"
    yield from outline.clipping_needs(max((parts, *parts_on)))
    if outline.sparse or outline.rounds or outline.model.reordered or outline.handed < outline.count:
        yield NEVER  # torch clips none; a norm in another order has other bits; what no group has may pile up


def _spoiling_needs(outline: Outline, spoiled: str, max_norm: float | None) -> Iterator[str]:
    yield "nan" if spoiled == "nan" else "infinity"
    if max_norm is not None:
        yield "clipped infinity" if spoiled != "nan" and max_norm else NEVER
    yield from only_if(not outline.sparse)


def stepped(outline: Outline, **given: Any) -> None:
    outline.steps += given.get("times", 1) if outline.closures else 0
    outline.fresh = outline.thawed = outline.missed = outline.added = False
    outline.stood |= outline.still
    outline.keeps = outline.will_keep
    outline.unused |= (
        bool(given.get("skips"))
        and not given.get("skips_in")
        and by_all(outline, given.get("skipped_by", ()), given.get("by_turns", False))
    )
    outline.spoiled |= bool(given.get("spoiled"))


ROWS: Mapping[str, Any] = {"rows": lambda outline: (1, 4, 2, 5)[: outline.model.size]}

#: Ranks that have more microbatches than others, or fewer.
PARTS_ON: Mapping[str, Any] = {"parts_on": lambda outline: (1, 3, 2, 1)[: outline.model.size]}

STEPS: dict[str, Any] = {
    "needs": step_needs,
    "needs_of": {
        "parts": lambda outline: [_several(outline)],
        "parts_on": _parts_on_needs,
        "max_norm": _clipping_needs,
        "skips": skipping_needs,
        "skipped_by": lambda outline, skips: only_if(skips),
        "skips_in": skipping_in_needs,
        "by_turns": by_turns_needs,
        "rows": "rows",
        "spoiled": _spoiling_needs,
        "by": lambda outline, spoiled: only_if(spoiled),
        "waits": "late changes",
    },
    "then": stepped,
    "laws": {
        "spoiled": "non-finite",
        "waits": "late",
        "max_norm": "clip",
        "skips": "parity.models",
        "parts": "accumulate",
        "parts_on": "accumulate",
        "rows": "mean",
    },
    "often": 6,
    "writes": ("parameter", "gradient", "optimizer state", "step count", "scheduler", "generator"),
    "reads": (
        "parameter",
        "gradient",
        "buffer",
        "optimizer state",
        "step count",
        "option",
        "group",
        "frozen",
        "scheduler",
        "hook",
        "use",
    ),
    "reads_further": {10: ("generator",)},
    "drawn": {
        "times": (1, 1, 2),
        "parts": (1, 1, 2, 3),
        "parts_on": lambda outline: often_nothing([*itertools.product((1, 3, 2), repeat=outline.model.size)]),
        "max_norm": (None, None, None, None, 0.05, 0.5, 0.0),
        "skips": lambda outline: often_nothing(subsets(range(outline.count))[1:]),
        "skipped_by": lambda outline: subsets(range(outline.model.size))[1:],
        "skips_in": ((), (), (), (0,), (1,)),
        "by_turns": (False, False, True),
        "rows": lambda outline: often_nothing([*itertools.product((1, 5, 2), repeat=outline.model.size)]),
        "spoiled": ("",) * 30 + ("inf", "nan", LARGE),
        "by": lambda outline: range(outline.model.size),
        "waits": (False,) * 15 + (True,),
    },
    "kinds": (
        {},
        {"parts": 2},
        {"max_norm": 0.05},
        {"parts": 2, "max_norm": 0.05},
        SOME_RANKS,
        {**SOME_RANKS, "parts": 2},
        NO_RANK,
        ROWS,
        {"spoiled": lambda outline: "inf" if outline.saved else None, "by": lambda outline: outline.model.size - 1},
    ),
    "further": {
        1: (
            {"spoiled": lambda outline: LARGE if outline.saved else None},
            {"spoiled": lambda outline: LARGE if outline.saved else None, "max_norm": 0.05},
        ),
        3: tuple(
            {**skips, "parts": 2, "skips_in": (number,)} for skips in (NO_RANK, SOME_RANKS) for number in (0, 1)
        ),
        4: ({"max_norm": 0.0}, {"parts": 2, "max_norm": 0.0}),
        8: ({"max_norm": 0.5},),  # another norm than that of an earlier step
    },
    "beside": (
        SOME_RANKS,
        {"max_norm": 0.05},
        {**TURNS, "max_norm": 0.5},
        {"parts": 2},
        TURNS,
        ROWS,
        FIRST_RANK,
        PARTS_ON,
    ),
}
