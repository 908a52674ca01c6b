"""What a call of parity notes for reports: each tensor's error and bound, what is said of it, within limits."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import torch
from everyrank.model import notes
from everyrank.model.parity import NAMES, NOTE, ROWS, STEPS, ParityMapPart, ParityPart, ParityRowPart, most_urgent
from everyrank.parity.judge.steps import Deviation, Judged
from everyrank.parity.report.maps import Held
from everyrank.parity.report.record import CALLS, note, record
from everyrank.parity.report.report import Finding, Report
from everyrank.parity.run.plain import BACKWARD, FORWARD, START
from everyrank.parity.values.dye import Holdings
from everyrank.parity.values.parts import Part

Named = tuple[str, str]
ORDER = {FORWARD: [("first", 0, 0), ("last", 0, 0)], BACKWARD: ["last.weight", "first.weight"]}


def judged(
    step: int,
    errors: dict[Named, float],
    deviating: Iterable[Named] = (),
    missing: Iterable[Named] = (),
    partial: Iterable[str] = (),
) -> Judged:
    deviations = [Deviation(*name, step, errors[name], 1e-8, (0, 1), (), "") for name in deviating]
    return Judged(
        step,
        tuple(deviations),
        frozenset(errors) - set(missing),
        frozenset(missing),
        errors,
        dict.fromkeys(errors, 1e-8),
        frozenset((FORWARD, (name, 0, 0)) for name in partial),
    )


def finding(kind: str, tensor: str, **changes: Any) -> Finding:
    found: dict[str, Any] = {
        "step": 1, "pattern": "stale", "words": "is old", "error": 0.5, "limit": 1e-8, "ranks": (0, 1),
        "dtypes": ("fp64",), **changes,
    }  # fmt: skip
    return Finding(kind, tensor, **found)


def report(*findings: Finding, not_compared: tuple[str, ...] = ()) -> Report:
    return Report(findings, (), 3, 4, not_compared, ("fp64",), 2, 3, "rows")


def rows(found: ParityPart) -> dict[Named, ParityRowPart]:
    return {(row.kind, row.tensor): row for row in found.passes[0].rows}


def made(*steps: Judged, whole: Report | None = None) -> ParityPart:
    return record(whole or report(), [(torch.float64, steps)], ORDER)


GREEN = [
    judged(START, {("initialization", "first.weight"): 0.0}),
    *(judged(step, {("forward", "first"): 1e-16, ("gradient", "last.weight"): 2e-16 * step}) for step in range(3)),
]


def test_a_green_run_has_each_error_of_each_step_and_its_bound() -> None:
    found = made(*GREEN)
    assert (found.compared, found.tensors, found.faults) == (3, 4, [])
    assert rows(found) == {
        ("initialization", "first.weight"): ParityRowPart("initialization", "first.weight", [0.0], [1e-8]),
        ("forward", "first"): ParityRowPart("forward", "first", [1e-16] * 3, [1e-8]),
        ("gradient", "last.weight"): ParityRowPart("gradient", "last.weight", [0.0, 2e-16, 4e-16], [1e-8]),
    }


def test_rows_stand_in_the_order_of_the_plain_models_run() -> None:
    errors = {("gradient", "first.weight"): 0.0, ("gradient", "last.weight"): 0.0, ("forward", "last"): 0.0}
    assert [*rows(made(judged(0, errors)))] == [
        ("forward", "last"), ("gradient", "last.weight"), ("gradient", "first.weight"),
    ]  # fmt: skip


def test_a_fault_has_its_sentence_its_pattern_and_its_row() -> None:
    steps = (*GREEN[:2], judged(1, {("gradient", "last.weight"): 0.5}, [("gradient", "last.weight")]))
    found = made(*steps, whole=report(finding("gradient", "last.weight", step=2)))
    (fault,) = found.faults
    assert (fault.pattern, fault.step, fault.error, fault.limit) == ("stale", 2, 0.5, 1e-8)
    assert fault.text == "gradient of `last.weight` is old (step 2, fp64)"
    row = rows(found)["gradient", "last.weight"]
    assert (row.errors, row.states) == ([0.0, 0.5], ["ok", "first"])


@pytest.mark.parametrize(
    ("name", "state"),
    [("last.weight", "first"), ("first.weight", "same"), ("middle.weight", "also"), ("more.weight", "follows")],
)
def test_a_tensor_that_deviates_is_the_first_alike_another_fault_or_a_consequence(name: str, state: str) -> None:
    names = [("gradient", f"{each}.weight") for each in ("last", "first", "middle", "more")]
    faults = finding("gradient", "last.weight", same=("first.weight",)), finding("gradient", "middle.weight")
    found = made(judged(0, dict.fromkeys(names, 0.5), names), whole=report(*faults))
    assert rows(found)["gradient", name].states == [state]


def test_a_tensor_beside_one_of_which_no_more_is_known_than_that_it_differs_is_not_the_same() -> None:
    names = [("gradient", f"{each}.weight") for each in ("last", "first")]
    words = {"pattern": "", "words": "differs by 0.5 of its largest value on ranks 0 and 1"}
    fault = finding("gradient", "last.weight", same=("first.weight",), **words)
    found = made(judged(0, dict.fromkeys(names, 0.5), names), whole=report(fault))
    assert [rows(found)[name].states for name in names] == [["first"], ["also"]]


def test_an_update_beyond_its_bound_that_is_no_fault_follows_from_its_gradient() -> None:
    step = judged(
        0, {("gradient", "first.weight"): 0.5, ("update", "first.weight"): 0.1}, [("gradient", "first.weight")]
    )
    found = made(step, whole=report(finding("gradient", "first.weight")))
    assert rows(found)["update", "first.weight"].states == ["follows"]


def test_what_is_not_compared_is_there_without_an_error() -> None:
    found = made(judged(0, {}, missing=[("forward", "last")]), whole=report(not_compared=("forward last",)))
    assert rows(found)["forward", "last"] == ParityRowPart("forward", "last", [None], [0.0], ["not-compared"])
    assert found.not_compared == ["forward last"]


def test_an_output_that_is_right_as_a_sum_over_ranks_is_called_so() -> None:
    assert rows(made(judged(0, {}, partial=["last"])))["forward", "last"].states == ["sum"]


def test_an_initialization_that_nobody_holds_has_a_row() -> None:
    lost = finding("initialization", "first.weight", step=0, error=math.inf)
    row = rows(made(judged(START, {}), whole=report(lost)))["initialization", "first.weight"]
    assert (row.errors, row.states) == ([sys.float_info.max], ["first"])


def test_a_sum_that_is_a_fault_has_the_error_and_the_bound_of_the_fault() -> None:
    step = judged(0, {}, partial=["last"])
    row = rows(made(step, whole=report(finding("forward", "last", error=0.4))))["forward", "last"]
    assert (row.errors, row.limits, row.states) == ([0.4], [1e-8], ["first"])


def test_a_fault_of_one_dtype_is_marked_in_that_pass_alone() -> None:
    wrong = judged(0, {("gradient", "last.weight"): 0.5}, [("gradient", "last.weight")])
    passes = [(torch.float64, GREEN), (torch.float32, [wrong])]
    found = record(report(finding("gradient", "last.weight", dtypes=("fp32",))), passes, ORDER)
    states = [[state for row in each.rows for state in row.states] for each in found.passes]
    assert states == [[], ["first"]]


# -- limits ---------------------------------------------------------------------------------------------------------


def test_of_a_long_run_the_last_steps_are_kept_and_numbered() -> None:
    found = made(*(judged(step, {("loss", ""): step * 1e-10}) for step in range(20))).passes[0]
    assert (found.first, found.steps) == (20 - STEPS + 1, 20)
    assert found.rows[0].errors[-1] == 1.9e-9


def test_of_very_many_tensors_those_that_deviate_and_the_largest_errors_are_kept() -> None:
    errors = {("gradient", f"layer{number}.weight"): number * 1e-13 for number in range(3 * ROWS)}
    errors["gradient", "layer0.weight"] = 0.5
    step = judged(0, errors, [("gradient", "layer0.weight")])
    found = made(step, whole=report(finding("gradient", "layer0.weight"), not_compared=("forward x",) * 10_000))
    (kept,) = found.passes
    assert (len(kept.rows), kept.left_out) == (ROWS, 2 * ROWS)
    assert (kept.rows[0].tensor, kept.rows[0].states) == ("layer0.weight", ["first"])
    assert kept.rows[-1].tensor == f"layer{3 * ROWS - 1}.weight"
    assert (len(found.not_compared), found.not_compared_left_out) == (NAMES, 10_000 - NAMES)
    assert len(msgspec.json.encode(found)) < 200_000


def test_the_most_urgent_rows_stay_in_their_order() -> None:
    names = [ParityRowPart("forward", name, [error], [1.0]) for name, error in (("a", 0.1), ("b", 0.3), ("c", 0.2))]
    assert [row.tensor for row in most_urgent(names, 2)] == ["b", "c"]


# -- what is noted --------------------------------------------------------------------------------------------------


@dataclass
class Alone:
    """The only rank of a world without processes."""

    rank: int = 0

    def decide(self, value: Any, decision: Callable[[list[Any]], Any]) -> Any:
        return decision([value])


@dataclass
class Kept:
    """A store without values."""

    notes: dict[str, Any]

    def get(self, key: Any) -> None:
        return None


@pytest.fixture
def noted() -> Iterator[dict[str, Any]]:
    """Return the notes of a test whose ranks are this process."""
    found: dict[str, Any] = {}
    with patch.object(notes, "_current", [lambda: found]):
        yield found


def call(*findings: Finding, rank: int = 0) -> None:
    held = Held(Holdings((), (), (), (), (), ()), {}, Kept(ORDER))  # type: ignore[arg-type]
    note(Alone(rank), report(*findings), [(torch.float64, GREEN)], held)  # type: ignore[arg-type]


def test_each_call_of_a_test_is_noted_as_plain_data(noted: dict[str, Any]) -> None:
    call()
    call(finding("loss", ""))
    assert [len(each.get("faults", [])) for each in noted[NOTE]] == [0, 1]
    assert msgspec.convert(noted[NOTE], list[ParityPart])[1].faults[0].pattern == "stale"


def test_of_very_many_calls_the_last_is_kept_and_all_are_counted(noted: dict[str, Any]) -> None:
    for _ in range(CALLS + 5):
        call()
    call(finding("loss", ""))
    assert noted[f"{NOTE}-calls"] == CALLS + 6
    assert [bool(each.get("faults")) for each in noted[NOTE]] == [False] * (CALLS - 1) + [True]


def test_only_the_first_rank_notes(noted: dict[str, Any]) -> None:
    call(rank=1)
    assert noted == {}


def test_a_script_notes_nothing() -> None:
    with patch.object(notes, "_current", []):
        call()


# -- maps of outputs ------------------------------------------------------------------------------------------------


@dataclass
class Shaped(Kept):
    """A store that has outputs of a shape alone."""

    shape: tuple[int, ...] = (4, 3)

    def get(self, key: Any) -> torch.Tensor | None:  # type: ignore[override]
        return torch.empty(self.shape) if key[0] == FORWARD else None


def mapped(parts: dict[int, Part], step: Judged) -> list[ParityMapPart]:
    """Return the maps of a call whose rank has these parts, by the number of the microbatch, of the first module."""
    known = {(0, FORWARD, ("first", number, 0)): part for number, part in parts.items()}
    found: dict[str, Any] = {}
    held = Held(Holdings((), (), (), (), (), ()), known, Shaped(ORDER))  # type: ignore[arg-type]
    with patch.object(notes, "_current", [lambda: found]):
        note(Alone(), report(), [(torch.float64, [step])], held)  # type: ignore[arg-type]
    return msgspec.convert(found[NOTE][0].get("maps", []), list[ParityMapPart])


def rows_of(*indices: int) -> Part:
    return Part((torch.tensor(indices), None), torch.Size((4, 3)))


FINE = judged(0, {("forward", "first"): 0.0})


def test_the_parts_of_all_microbatches_are_one_map() -> None:
    (found,) = mapped({0: rows_of(0, 1), 1: rows_of(2, 3)}, FINE)
    assert [(region.ranks, region.box) for region in found.regions] == [([0], [0, 4, 0, 3])]


def test_rows_of_a_right_output_that_no_rank_seems_to_hold_are_equal_to_others() -> None:
    (found,) = mapped({0: rows_of(0, 1, 3)}, FINE)
    assert found.alike


def test_rows_of_a_wrong_output_that_no_rank_holds_are_lost() -> None:
    (found,) = mapped({0: rows_of(0, 1)}, judged(0, {("forward", "first"): 1.0}, [("forward", "first")]))
    assert not found.alike


def test_an_output_that_is_not_compared_has_no_map_with_holes() -> None:
    assert mapped({0: rows_of(0, 1)}, judged(0, {}, missing=[("forward", "first")])) == []
