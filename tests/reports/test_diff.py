"""``everyrank diff``: what each step from one outcome to another means, and what is reported of it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
from everyrank.model.fault import PointPart, SweepPart
from everyrank.model.mutation import MutantPart, MutationPart
from everyrank.model.outcome import ENDINGS, RED, Ending
from everyrank.reports.diff.diff import WORSE, Diff, diff, judged
from everyrank.reports.diff.pairing import Aliases
from everyrank.reports.diff.render import as_json, as_markdown, as_text, verdict
from everyrank.reports.runfile.model import ErrorPart
from everyrank.reports.runfile.read import read

from tests.made_up_runs import MadeUp, case, header, made_up, run_of


@pytest.fixture
def compare(tmp_path: Path) -> Any:
    """Write two runs, read them, compare them."""

    def compared(old: MadeUp, new: MadeUp, aliases: Aliases | None = None, partial: bool = False) -> Diff:
        files = old.write(tmp_path / "old.jsonl"), new.write(tmp_path / "new.jsonl")
        first, second = (read(file, partial) for file in files)
        return diff(first, second, aliases)

    return compared


def _kinds(found: Diff) -> dict[str, list[str]]:
    """The labels of the cases of each kind of change."""
    kinds: dict[str, list[str]] = {}
    for change in found.changes:
        kinds.setdefault(change.kind, []).append(change.case.optimizer)
    return kinds


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("pass", "fail", "regression"),
        ("pass", "not-run", "regression"),
        ("pass", "interrupted", "regression"),
        ("pass", "stale", "regression"),
        ("known", "crash", "regression"),
        ("skipped", "error", "regression"),
        ("fail", "pass", "fix"),
        ("crash", "approximate", "fix"),
        ("known", "pass", "fix"),
        ("known", "stale", "stale"),
        ("unsupported", "stale", "stale"),
        ("fail", "stale", "changed"),
        ("skipped", "stale", "regression"),
        ("unsupported", "pass", "fix"),
        ("stale", "pass", "fix"),
        ("fail", "crash", "changed"),
        ("fail", "known", "changed"),
        ("fail", "skipped", "changed"),
        ("fail", "not-run", "changed"),
        ("pass", "known", "changed"),
        ("pass", "skipped", "changed"),
        ("pass", "approximate", "changed"),
        ("skipped", "pass", "changed"),
        ("stale", "known", "changed"),
    ],
)
def test_what_a_step_means(old: Ending, new: Ending, kind: str) -> None:
    assert judged(old, new) == kind


def test_no_step_from_green_to_red_goes_by_and_none_that_is_red_is_a_fix() -> None:
    for old, new in itertools.product(ENDINGS, ENDINGS):
        kind = judged(old, new)
        assert (kind is None) == (old == new)
        if old not in RED and new in RED:
            no_longer_holds = new == "stale" and old in ("known", "unsupported")
            assert kind == ("stale" if no_longer_holds else "regression"), (old, new)
        if kind in WORSE:
            assert new in RED
        if kind == "fix":
            assert new not in RED


def test_a_declaration_that_went_stale_is_red_as_it_is_everywhere(compare: Any) -> None:
    old, new = run_of(header(), [case(outcome="known")]), run_of(header(), [case(outcome="stale")])
    found = compare(old, new)
    assert _kinds(found) == {"stale": ["SGD"]}
    assert found.regressed
    assert not found.passed


def test_what_is_red_as_before_is_no_regression_and_is_counted(compare: Any) -> None:
    run = run_of(header(), [case(outcome="fail"), case(label="Adam", outcome="stale"), case(label="Muon")])
    found = compare(run, run.but({run.cases[0].id: {"outcome": "crash"}}))
    assert (found.regressed, found.passed, found.still_red) == (False, True, 2)


@pytest.mark.parametrize("allow_gone", [False, True])
def test_cases_that_vanished_are_no_success_unless_they_may(tmp_path: Path, allow_gone: bool) -> None:
    old = run_of(header(), [case(), case(label="Adam")]).write(tmp_path / "old.jsonl")
    new = run_of(header(), [case()]).write(tmp_path / "new.jsonl")
    found = diff(read(old), read(new), allow_gone=allow_gone)
    assert (found.regressed, found.passed) == (False, allow_gone)


def test_equal_runs_do_not_differ(compare: Any) -> None:
    found = compare(made_up(cases=300), made_up(cases=300))
    assert not found.changes
    assert not found.less_exact
    assert not found.pace.laws
    assert not found.pace.cases
    assert not found.pace.slower


def test_each_kind_of_change_is_found(compare: Any) -> None:
    old = run_of(
        header(),
        [
            case(label="SGD"),
            case(label="Adam", outcome="fail"),
            case(label="Muon", outcome="fail"),
            case(label="ASGD"),
        ],
    )
    new = run_of(
        header(),
        [
            case(label="SGD", outcome="crash"),
            case(label="Adam"),
            case(label="Muon", outcome="timeout"),
            case(label="LBFGS"),
            case(label="NAdam", outcome="fail"),
        ],
    )  # fmt: skip
    found = compare(old, new)
    assert _kinds(found) == {
        "regression": ["SGD", "NAdam"], "fix": ["Adam"], "changed": ["Muon"], "new": ["LBFGS"], "gone": ["ASGD"],
    }  # fmt: skip
    assert found.regressed


def test_what_the_new_run_never_came_to_regressed(compare: Any) -> None:
    run = run_of(header(), [case(label=label) for label in ("SGD", "Adam", "Muon")])
    found = compare(run, run.stopped_after(2))
    assert [(change.case.optimizer, change.step) for change in found.changes] == [("Muon", ("pass", "not-run"))]
    assert found.regressed


def test_a_case_that_the_old_run_did_not_run_is_only_new(compare: Any) -> None:
    run = run_of(header(), [case(label=label) for label in ("SGD", "Adam", "Muon")])
    found = compare(run.cut_after(1), run, partial=True)
    assert _kinds(found) == {"new": ["Adam", "Muon"]}


def test_a_case_in_which_the_old_run_was_interrupted_is_only_new(compare: Any) -> None:
    old = run_of(header(), [case(outcome="interrupted", started=1.0)])
    assert _kinds(compare(old, run_of(header(), [case()]))) == {"new": ["SGD"]}


@pytest.mark.parametrize(("started", "kinds"), [(0.0, {"new": ["SGD"]}), (1.0, {"fix": ["SGD"]})])
def test_a_case_that_a_broken_adapter_kept_from_running_is_mended_and_one_that_was_not_reached_is_new(
    compare: Any, started: float, kinds: Any
) -> None:
    old, new = run_of(header(), [case(outcome="not-run", started=started)]), run_of(header(), [case()])
    assert _kinds(compare(old, new)) == kinds


def test_a_test_file_that_moved_is_paired_by_subject_and_case(compare: Any) -> None:
    old = run_of(header(), [case(test="test_old.py::test_it")])
    new = run_of(header(), [case(test="tests/test_new.py::test_all", outcome="fail")])
    assert [change.step for change in compare(old, new).changes] == [("pass", "fail")]


@pytest.mark.parametrize(
    ("aliases", "kinds"),
    [
        (Aliases(), {"new": ["SGD"], "gone": ["SGD"]}),
        (Aliases({"none.pos": "none.position"}), {}),
        (Aliases({"rpc-optimizer/none.pos": "none.position"}), {}),
        (Aliases({"rpc-optimizer/none.pos": "rpc-optimizer/none.position"}), {}),
        (Aliases({"none.pos": "none.place", "none.place": "none.position"}), {}),
        (Aliases({"replicate/none.pos": "none.position"}), {"new": ["SGD"], "gone": ["SGD"]}),
    ],
)
def test_a_renamed_law_is_paired_through_an_alias(compare: Any, aliases: Aliases, kinds: Any) -> None:
    old, new = run_of(header(), [case(law="none.pos")]), run_of(header(), [case(law="none.position")])
    assert _kinds(compare(old, new, aliases)) == kinds


def test_a_renamed_subject_is_paired_through_an_alias(compare: Any) -> None:
    old, new = (run_of(header(), [case(subject=name)]) for name in ("mine.Old", "mine.New"))
    assert not compare(old, new, Aliases(subjects={"mine.Old": "mine.New"})).changes
    assert len(compare(old, new).changes) == 2


def test_a_test_that_is_listed_twice_is_paired_twice(compare: Any) -> None:
    twice = run_of(header(), [case(), case(outcome="fail")])
    assert not compare(twice, twice).changes


# --- slower ------------------------------------------------------------------------------------------


def _timed(seconds: dict[str, list[float]], **more: Any) -> MadeUp:
    cases = [
        case(law=law, label=f"SGD-{number}", seconds=time, **more)
        for law, times in seconds.items()
        for number, time in enumerate(times)
    ]
    return run_of(header(), cases)


def test_a_law_whose_cases_all_got_slower_is_named_with_its_median(compare: Any) -> None:
    old = _timed({"clip": [0.1] * 10, "tied": [0.2] * 30})
    new = _timed({"clip": [0.3] * 10, "tied": [0.2] * 30})
    (law,) = compare(old, new).pace.laws
    assert (law.law, law.cases, law.old, law.new) == ("clip", 10, 0.1, 0.3)
    assert law.ratio == pytest.approx(3)
    assert not compare(new, old).pace.laws


def test_a_slower_host_is_reported_once(compare: Any) -> None:
    old, new = made_up(cases=500), made_up(cases=500)
    slow = run_of(new.header, [msgspec.structs.replace(line, seconds=line.seconds * 2.5) for line in new.cases])
    pace = compare(old, slow).pace
    assert pace.slower
    assert pace.ratio == pytest.approx(2.5)
    assert not pace.laws
    assert not pace.cases


def test_a_few_noisy_cases_do_not_make_a_law_slower(compare: Any) -> None:
    old = _timed({"clip": [0.1] * 10, "tied": [0.1] * 30})
    new = _timed({"clip": [0.1] * 6 + [0.3] * 4, "tied": [0.1] * 30})
    pace = compare(old, new).pace
    assert not pace.laws
    assert not pace.cases


def test_times_below_the_floor_are_noise_whatever_their_ratio(compare: Any) -> None:
    pace = compare(_timed({"clip": [0.001] * 10}), _timed({"clip": [0.01] * 10})).pace
    assert not pace.laws
    assert not pace.cases


def test_one_case_that_stands_out_is_named_alone(compare: Any) -> None:
    old = _timed({"clip": [0.1] * 30})
    new = _timed({"clip": [0.1] * 29 + [4.0]})
    pace = compare(old, new).pace
    assert not pace.laws
    assert [(pair.new.case[-11:], pair.old.seconds, pair.new.seconds) for pair in pace.cases] == [
        ("[SGD-29-ws2]"[-11:], 0.1, 4.0)
    ]


def test_the_time_of_a_case_that_ended_otherwise_is_not_compared(compare: Any) -> None:
    old = _timed({"clip": [0.1] * 30})
    new = _timed({"clip": [30.0] * 30}, outcome="timeout")
    pace = compare(old, new).pace
    assert (pace.slower, pace.laws, pace.cases) == (False, (), ())


# --- less exact --------------------------------------------------------------------------------------


def _error(relative: float) -> ErrorPart:
    return ErrorPart(ulps=relative / 2.2e-16, absolute=relative, relative=relative, step=3, name="w", rank=1)


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        (0.0, 1e-16, True),
        (1e-14, 1e-13, True),
        (1e-14, 2e-14, False),
        (1e-16, 5e-16, False),
        (1e-13, 1e-14, False),
        (1e-16, 0.0, False),
    ],
)
def test_an_error_that_grew_is_reported(compare: Any, old: float, new: float, reported: bool) -> None:
    runs = (run_of(header(), [case(error=_error(error))]) for error in (old, new))
    assert len(compare(*runs).less_exact) == reported


def test_the_error_of_a_case_that_fails_now_is_a_regression_and_no_more(compare: Any) -> None:
    old, new = (
        run_of(header(), [case(error=_error(0.0))]),
        run_of(header(), [case(outcome="fail", error=_error(1.0))]),
    )
    found = compare(old, new)
    assert not found.less_exact
    assert found.regressed


# --- changes of collectives that a test does not notice any more -----------------------------------------


def _mutated(*outcomes: str, line: int = 8) -> MutationPart:
    location = f"model.py:{line}"
    changes = [
        MutantPart("zero", "all_reduce", location, f"the all_reduce at {location} gets zeros", outcome)
        for outcome in outcomes
    ]
    return MutationPart(1, len(changes), changes)


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        (_mutated("killed"), _mutated("survived", line=9), True),
        (_mutated("killed", "killed"), _mutated("killed", "survived"), True),
        (_mutated("killed", "survived"), _mutated("survived", "survived"), False),  # it was a hole before
        (_mutated("survived"), _mutated("killed"), False),
        (_mutated("redundant"), _mutated("survived"), False),  # nothing says that it was noticed
        (_mutated("killed"), _mutated("killed"), False),
        (None, _mutated("survived"), False),
        (_mutated("killed"), None, False),
    ],
)
def test_a_case_that_notices_less_than_before_is_named(
    compare: Any, old: MutationPart | None, new: MutationPart | None, reported: bool
) -> None:
    found = compare(*(run_of(header(), [case(mutation=part)]) for part in (old, new)))
    assert bool(found.notices_less) == reported
    assert ("1 case notices less" in verdict(found)) == reported
    if reported:
        line = "the all_reduce at model.py:"
        assert any(line in text for text in as_text(found).splitlines())
        assert line in as_markdown(found)
        assert len(msgspec.json.decode(as_json(found))["notices_less"][0]["survivors"]) == 1
        assert found.passed  # the outcomes are the same: whether it is red is the floor's to say


# --- points of a sweep at which a test fails now ----------------------------------------------------------


def _swept(*outcomes: str, line: int = 8, fault: str = "rank 1 dies at each collective") -> SweepPart:
    points = [PointPart(nth, outcome, "all_reduce", f"model.py:{line}") for nth, outcome in enumerate(outcomes, 1)]
    return SweepPart(fault, points)


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        (_swept("pass", "pass"), _swept("pass", "timeout", line=9), True),
        (_swept("pass", "fail"), _swept("fail", "fail"), False),  # some of its kind were red before
        (_swept("fail"), _swept("pass"), False),
        (_swept("not-applicable"), _swept("fail"), False),  # nothing was known of it
        (_swept("pass"), _swept("not-applicable"), False),
        (_swept("pass"), _swept("fail", fault="rank 0 dies at each collective"), False),
        (None, _swept("fail"), False),
    ],
)
def test_a_case_that_withstands_less_than_before_is_named(
    compare: Any, old: SweepPart | None, new: SweepPart | None, reported: bool
) -> None:
    found = compare(*(run_of(header(), [case(sweep=part)]) for part in (old, new)))
    assert bool(found.withstands_less) == reported
    assert ("1 case withstands less" in verdict(found)) == reported
    if reported:
        text = "rank 1 dies at each collective: fails now at all_reduce at model.py:9"
        assert text in as_text(found)
        assert "fails now at `all_reduce at model.py:9`" in as_markdown(found)
        assert msgspec.json.decode(as_json(found))["withstands_less"][0]["points"] == ["all_reduce at model.py:9"]
