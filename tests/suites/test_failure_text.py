"""A case that fails leads with its law, what the subject did, and what the deviation looks like."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from everyrank.suites.collect.failure_report import wants_traceback
from everyrank.suites.engine.failure import Failed, failure
from everyrank.suites.errors import Deviation, Explanation

from tests.inner import Inner, Project
from tests.run_files import read as read_run

_TRAINERS = """
    import torch
    import torch.distributed as dist
    from everyrank.suites import Subject, conformance

    class Trainer:
        def __init__(self, model, optimizer_class, *args, **kwargs):
            self.model = model
            self.optimizer = optimizer_class(model.parameters(), *args, **kwargs)
            self.count = 0

        def step(self, batch):
            self.count += 1
            self.optimizer.zero_grad()
            batch.loss(self.model).backward()
            self.reduce([parameter.grad for parameter in self.model.parameters()])
            self.optimizer.step()

        def reduce(self, gradients):
            for gradient in gradients:
                dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
                gradient /= dist.get_world_size()

        def parameters(self):
            return dict(self.model.named_parameters())

    class Sums(Trainer):
        def reduce(self, gradients):
            for gradient in gradients:
                dist.all_reduce(gradient, op=dist.ReduceOp.SUM)

    class Forgets(Trainer):
        def reduce(self, gradients):
            if self.count < 2:
                super().reduce(gradients)

    class Raises(Trainer):
        def reduce(self, gradients):
            if self.count == 2:
                self.broadcast_from_nobody()
            super().reduce(gradients)

        def broadcast_from_nobody(self):
            dist.broadcast(torch.ones(2), src=7)

    def subject(build):
        return Subject(build.__name__, contract="trainer", build=build, sizes=(2,), declares={"trusts-init"})

    @conformance(subject(Sums))
    def test_sums(case): case.run()

    @conformance(subject(Forgets))
    def test_forgets(case): case.run()

    @conformance(subject(Raises))
    def test_raises(case): case.run()
"""

CASE = "trainer/parity.train[SGD-momentum-ws2]"
LAW = "After each step the parameters are those of one process that follows the unweighted mean over ranks."


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    module_project.write("test_t.py", _TRAINERS)
    options = ("-W", "ignore", "--law=parity.train", "--profile=full", "--run-file=run.jsonl")
    return module_project.run(*options, "-k", "SGD-momentum-ws2")


def test_the_law_comes_first_and_then_the_deviation_with_its_pattern(inner: Inner) -> None:
    lines = inner[f"test_sums[{CASE}]"].text.splitlines()
    assert lines[:5] == [
        "on ranks 0,1",
        f"law: {LAW}",
        f"[fail] Sums {CASE}",
        "  step 1, first.weight: as if the gradients of the 2 ranks were added up, without a mean (sum-for-mean)",
        lines[4],
    ]
    assert re.fullmatch(r"  off by \S+ \(\S+ relative\)", lines[4])


def test_a_failure_is_a_few_lines_without_a_frame_of_the_kit(inner: Inner) -> None:
    for test in inner.tests.values():
        text, _, repeat = test.text.partition("to repeat")
        assert repeat
        assert len(text.splitlines()) < 25
        assert not re.findall(r"everyrank/(?:suites|rank)/", text)


def test_what_was_right_before_is_stated(inner: Inner) -> None:
    text = inner[f"test_forgets[{CASE}]"].text
    assert "  step 2, first.weight: as if this rank had used its own gradient, not the mean (not-reduced)\n" in text
    assert "  right in step 1, wrong in steps 2" in text


def test_the_frames_of_what_the_subject_raised_stay(inner: Inner) -> None:
    text = inner[f"test_raises[{CASE}]"].text
    law, _, frames = text.partition("Traceback (most recent call last):\n")
    assert law.endswith(f"[fail] Raises {CASE}\n  step raised RuntimeError: {_RAISED}\n\n")
    assert re.findall(r"test_t\.py\", line \d+, in (\w+)", frames) == ["step", "reduce", "broadcast_from_nobody"]
    assert f"\nRuntimeError: {_RAISED}\n" in frames


_RAISED = "ProcessGroupGloo::broadcast: invalid root rank: 7"


def test_torch_logs_of_a_collective_that_raised_are_left_out(inner: Inner) -> None:
    assert not [name for name in inner[f"test_raises[{CASE}]"].sections if name.startswith("Captured log")]


def test_the_run_file_has_the_news_as_its_message_and_the_law_in_its_text(inner: Inner) -> None:
    lines = {line["subject"]: line for line in read_run(inner.folder / "run.jsonl").cases}
    assert {subject: line["message"] for subject, line in lines.items()} == {
        "Sums": "step 1, first.weight: as if the gradients of the 2 ranks were added up, without a mean",
        "Forgets": "step 2, first.weight: as if this rank had used its own gradient, not the mean",
        "Raises": f"step raised RuntimeError: {_RAISED}",
    }
    assert {line["text"].splitlines()[1] for line in lines.values()} == {f"law: {LAW}"}


def test_the_line_of_the_summary_begins_with_the_news(inner: Inner) -> None:
    summary = inner.out.partition("short test summary info")[2]
    lines = [line for line in summary.splitlines() if line.startswith("FAILED")]
    assert len(lines) == 3
    assert all(" - step" in line for line in lines), lines


# --- without a run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({}, False), ({"tbstyle": "long"}, True), ({"fulltrace": True}, True), ({"tbstyle": "short"}, False)],
)
def test_whoever_asks_for_long_tracebacks_gets_the_frames_of_the_kit(options: dict[str, Any], wanted: bool) -> None:
    config: Any = SimpleNamespace(getoption=lambda name, default: options.get(name, default))
    assert wants_traceback(config) is wanted


def _failed(text: str, error: BaseException | None) -> Failed:
    return failure("fail", "mine c/law[ws2]", "The law.\n\nMore about it.", text, error)


def _explained(location: str) -> Deviation:
    return Deviation("step 1, w: off by 3", explain=lambda: Explanation(location, "zero", "zero"))


def test_a_deviation_that_looks_like_nothing_is_its_own_news() -> None:
    failed = _failed("step 1, w: off by 3\n  wrong in step 1: w", Deviation("step 1, w: off by 3"))
    assert failed.news == "step 1, w: off by 3"
    assert failed.report == "law: The law.\n[fail] mine c/law[ws2]\n  step 1, w: off by 3\n  wrong in step 1: w"


def test_an_explanation_replaces_the_location_of_the_difference() -> None:
    failed = _failed("step 1, w: off by 3", _explained("step 1, w"))
    assert failed.news == "step 1, w: zero"
    assert failed.report.endswith("\n  step 1, w: zero (zero)\n  off by 3")


def test_a_text_about_something_else_keeps_its_first_line() -> None:
    assert _failed("the ledger expects more", _explained("step 1, w")).news == "the ledger expects more"


def test_a_problem_with_the_explanation_does_not_hide_the_deviation() -> None:
    def explain() -> None:
        raise KeyError("w")

    failed = _failed("step 1, w: off by 3", Deviation("step 1, w: off by 3", explain=explain))
    assert failed.news == "step 1, w: off by 3"
    assert "(what it looks like is not known: KeyError: 'w')" in failed.report


def test_an_error_of_a_law_itself_keeps_its_traceback() -> None:
    try:
        raise ZeroDivisionError("of the law")
    except ZeroDivisionError as error:
        failed = _failed("ZeroDivisionError: of the law", error)
    assert "in test_an_error_of_a_law_itself_keeps_its_traceback" in failed.report


# --- rogues -------------------------------------------------------------------------------------------

_ROGUES = """
    from everyrank.suites import Subject, conformance
    from everyrank.suites.engine.contract import contract

    BUILDS = {rogue.name: rogue.build for rogue in contract("trainer").part("rogues")}

    @conformance(*(Subject(name, contract="trainer", build=BUILDS[name], sizes=(3, 2)) for name in {names}))
    def test_rogue(case): case.run()
"""

#: A case of each rogue, and what its first line says.
_FIRST_LINES = {
    ("loads-no-state", "state.round-trip[Adam-ws2]"): "first.weight: as if the optimizer had started anew",
    ("does-not-clip", "clip[cut-ws3]"): "step 1, first.weight: as if this rank had not clipped",
    ("loses-weight-decay", "parity.train[Adam-everything-ws3]"): "step 1, first.weight: as if it had no weight decay",
    (
        "saves-no-step-counts",
        "state.reshard[Adam-3-to-2-ws3]",
    ): "as if the optimizer had begun to count its steps anew",
    ("steps-twice", "parity.train[Adam-everything-ws3]"): "as if the optimizer had stepped twice",
    ("clips-each-parameter", "clip[cut-ws3]"): "as if each parameter was clipped by its own norm",
    ("counts-replicas-in-the-norm", "clip[cut-ws3]"): "as if the norm had counted all parameters 3 times",
    ("mirrors-another-rank", "parity.train[SGD-everything-ws3]"): "rank 0's gradient had counted for that of rank 2",
    ("steps-before-the-reduction", "parity.train[SGD-everything-ws3]"): "used the gradients of the step before",
    ("shows-a-copy-of-the-groups", "alias[between-ws3]"): "step 2, first.weight: 2 times the reference's step",
}


def test_a_rogues_first_line_names_what_it_does_and_nothing_that_fits_by_chance(project: Project) -> None:
    project.write("test_r.py", _ROGUES.replace("{names}", repr(sorted({name for name, _ in _FIRST_LINES}))))
    chosen = " or ".join(f"({name} and {case[:-1]})" for name, case in _FIRST_LINES)
    inner = project.run("test_r.py", "--profile=full", "-W", "ignore", "--run-file=run.jsonl", "-k", chosen)
    assert len(inner.tests) == len(_FIRST_LINES)
    lines = read_run(project.folder / "run.jsonl").cases
    messages = {(line["subject"], line["case"].partition("/")[2]): line["message"] for line in lines}
    assert {case: text in messages[case] for case, text in _FIRST_LINES.items()} == dict.fromkeys(
        _FIRST_LINES, True
    ), messages
