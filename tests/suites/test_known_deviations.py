"""A known deviation is a statement about what is seen: a case that deviates otherwise is red."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from everyrank.model.ledger import holds
from everyrank.suites import Lack
from everyrank.suites.compare.comparison import Comparison, same
from everyrank.suites.engine.judge import Outcome, judge
from everyrank.suites.engine.ledger import Entry, SeenDeviation, read
from everyrank.suites.errors import Deviation, LedgerError, kinds

from tests.inner import Project


def _fail(text: str, raised: tuple[str, ...] = (), off: float | None = None) -> Outcome:
    return Outcome("fail", text, Deviation(text, raised, off))


WRONG = _fail("step 2, parameter 0 on worker1: off by 0.017, 2.5e+14 ULPs", off=0.008)
RAISED = _fail("raised TypeError: no foreach", kinds(TypeError()))
ESCAPED = Outcome("error", "KeyError: 3", KeyError(3))
PASS, VACUOUS = Outcome("pass"), Outcome("not-applicable", "the reference did not move")


def _entry(**stated: Any) -> Entry:
    return Entry("law[*]", stated.pop("kind", "fail"), "unreported", "why", **stated)


@pytest.mark.parametrize(
    ("outcome", "entry", "verdict"),
    [
        (WRONG, _entry(), "known"),
        (RAISED, _entry(), "known"),
        (ESCAPED, _entry(), "error"),
        (ESCAPED, _entry(kind="error"), "known"),
        (WRONG, _entry(kind="error"), "fail"),
        (WRONG, _entry(kind="documented", match=("step 2",)), "known"),
        # the text
        (WRONG, _entry(match=("step 2, * off by",)), "known"),
        (WRONG, _entry(match=("step 1, * off by",)), "fail"),
        (WRONG, _entry(match=("step 1", "step 2")), "known"),
        (ESCAPED, _entry(kind="error", match=("KeyError",)), "known"),
        (ESCAPED, _entry(kind="error", match=("TypeError",)), "error"),
        # an exception is not a difference
        (RAISED, _entry(raises="TypeError"), "known"),
        (RAISED, _entry(raises="ValueError"), "fail"),
        (WRONG, _entry(raises="TypeError"), "fail"),
        (RAISED, _entry(match=("foreach",)), "fail"),
        (RAISED, _entry(raises="TypeError", match=("foreach",)), "known"),
        (RAISED, _entry(raises="TypeError", match=("fused",)), "fail"),
        (ESCAPED, _entry(kind="error", raises="LookupError"), "known"),
        (ESCAPED, _entry(kind="error", raises="TypeError"), "error"),
        # how far off
        (WRONG, _entry(at_most=0.01), "known"),
        (WRONG, _entry(at_most=0.001), "fail"),
        (_fail("off", off=float("inf")), _entry(at_most=1e300), "fail"),
        (_fail("nothing was compared"), _entry(at_most=1.0), "fail"),
        (RAISED, _entry(at_most=1.0), "fail"),
        # what is no deviation
        (PASS, _entry(match=("step 2",)), "stale"),
        (Outcome("approximate"), _entry(), "stale"),
        (VACUOUS, _entry(), "not-applicable"),
        (PASS, None, "pass"),
        (WRONG, None, "fail"),
    ],
)
def test_what_a_case_with_an_entry_comes_to(outcome: Outcome, entry: Entry | None, verdict: str) -> None:
    assert judge(outcome, entry, None, False)[0] == verdict


@pytest.mark.parametrize(
    ("outcome", "others_failed", "verdict"),
    [
        (PASS, False, "stale"),
        (PASS, True, "pass"),
        (WRONG, False, "fail"),
        (Outcome("fail", "", Deviation("")), False, "fail"),
        (Outcome("error", "KeyError", KeyError()), False, "unsupported"),
        (Outcome("error", "TypeError", TypeError()), False, "error"),
        (
            Outcome("fail", "", Deviation("on rank 1: raised KeyError", ("KeyError", "LookupError"))),
            False,
            "unsupported",
        ),
        (Outcome("fail", "", Deviation("on rank 1: raised TypeError", ("TypeError",))), False, "fail"),
        (VACUOUS, False, "not-applicable"),
    ],
)
def test_what_a_case_that_is_declared_as_lacking_comes_to(
    outcome: Outcome, others_failed: bool, verdict: str
) -> None:
    assert judge(outcome, _entry(), Lack(KeyError, "not done"), others_failed)[0] == verdict


def test_a_case_that_deviates_instead_of_refusing_leads_with_the_deviation() -> None:
    _, text = judge(WRONG, None, Lack(KeyError, "no state"), False)
    assert text.startswith(WRONG.text)
    assert "declares a lack here (no state), so a refusal was expected" in text


def test_a_rank_that_passes_beside_one_that_deviates_is_not_stale() -> None:
    assert judge(PASS, _entry(match=("step 2",)), None, True) == ("pass", "")


def test_the_text_states_what_the_entry_expects_and_what_was_seen() -> None:
    _, text = judge(RAISED, _entry(match=("off by",), at_most=0.01), None, False)
    assert text == (
        "raised TypeError: no foreach\n"
        "  the ledger's entry 'law[*]' expects 'fail', nothing raised, a text with 'off by', "
        "off by at most 0.01 relative\n"
        "  seen: 'fail', raised TypeError"
    )
    _, text = judge(WRONG, _entry(raises="TypeError"), None, False)
    assert text.endswith("expects 'fail', raises TypeError\n  seen: 'fail', nothing raised, off by 0.008 relative")


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("off by", "step 1: off by 3", True),
        ("step *: off", "step 12,\n  x: off by 3", True),
        ("a [b] (c)?", "has a [b] (c)? in it", True),
        ("operand for *=", "operand for *=: None", True),
        ("a  b", "a\n b", True),
        ("Off by", "off by", False),
        ("x.y", "xzy", False),
    ],
)
def test_a_pattern_is_a_part_of_the_text(pattern: str, text: str, found: bool) -> None:
    assert holds(text, pattern) is found


_HEAD = '[[known]]\ncase = "a"\nkind = "fail"\nissue = "unreported"\n'


def test_a_statement_is_read(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(f'{_HEAD}match = "off by"\nat_most = 1\n{_HEAD}raises = "ValueError"\nmatch = ["a", "b"]\n')
    first, second = read(file).entries
    assert (first.match, first.raises, first.at_most) == (("off by",), "", 1)
    assert (second.match, second.raises, second.at_most) == (("a", "b"), "ValueError", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("match = 3", "a: match must be a part of the deviation's text, or a list of such, not 3"),
        ('match = "*"', "a: match must be a part"),
        ('match = ["a", ""]', "a: match must be a part"),
        ("match = []", "a: match must have a text in it"),
        ('raises = ""', "a: raises must be the name of the exception's class, not ''"),
        ('raises = "torch.Error"', "a: raises must be the name"),
        ('raises = "Exception"', "a: raises must be the name"),
        ("at_most = 0", "a: at_most, the largest relative error, must be a number, not 0"),
        ("at_most = true", "must be a number, not True"),
        ("at_most = inf", "must be a number, not inf"),
        ('at_most = 1\nraises = "A"', "goes with values that differ, not with raises"),
    ],
)
def test_a_statement_that_cannot_be_believed_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "known.toml").write_text(_HEAD + text)
    with pytest.raises(LedgerError) as refused:
        read(tmp_path / "known.toml")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("torch", "version", "in_force"),
    [
        ("<2.14", "2.13.0+cpu", True),
        ("<2.14", "2.14.1+cu130", False),
        ("<2.14", "2.14.0.dev20260301+cpu", False),
        (">=2.14", "2.14.0a0+git1234567", True),
        ("==2.14.*", "2.14.1", True),
        (">=2.12, !=2.13.1", "2.13.1", False),
    ],
)
def test_an_entry_for_other_versions_of_torch_is_not_in_force(
    tmp_path: Path, torch: str, version: str, in_force: bool
) -> None:
    (tmp_path / "known.toml").write_text(f'{_HEAD}torch = "{torch}"\n')
    assert bool(read(tmp_path / "known.toml", version).entries) is in_force


@pytest.mark.parametrize("torch", ['""', '"2.14"', '"new"', "2.14"])
def test_versions_that_are_no_specifier_are_refused(tmp_path: Path, torch: str) -> None:
    (tmp_path / "known.toml").write_text(f"{_HEAD}torch = {torch}\n")
    with pytest.raises(LedgerError, match=r'torch must name versions as pip does, such as "<2.14", not'):
        read(tmp_path / "known.toml")


def test_an_entry_that_is_not_in_force_neither_expects_nor_complains(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(f'{_HEAD}torch = "<2.14"\n{_HEAD}torch = ">=2.14"\n')
    entries = read(tmp_path / "known.toml", "2.13.0").assign(["a"])
    assert entries["a"].torch == "<2.14"
    (tmp_path / "known.toml").write_text(f'{_HEAD}torch = "<2.14"\n')
    assert read(tmp_path / "known.toml", "2.14.1").assign(["b"]) == {}


def test_a_crash_has_nothing_to_match(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(_HEAD.replace('"fail"', '"crash"') + 'match = "x"')
    with pytest.raises(LedgerError, match="a crash leaves no text: match, raises and at_most are for other kinds"):
        read(tmp_path / "known.toml")


def test_a_comparison_states_how_far_off_the_worst_is() -> None:
    comparison = Comparison()
    start = {"a": torch.ones(1), "b": torch.ones(1)}
    comparison.start(start)
    comparison.step(1, start, {"a": torch.full((1,), 2.0), "b": torch.full((1,), 4.0)})
    with pytest.raises(Deviation) as found:
        comparison.verdict()
    assert (found.value.off, found.value.raised) == (0.75, ())
    with pytest.raises(Deviation) as found:
        same(torch.ones(1), torch.full((1,), 2.0), "a")
    assert found.value.off == 0.5


def test_the_first_difference_alone_has_its_size_for_a_ledger() -> None:
    comparison = Comparison()
    comparison.step(0, {"w": torch.tensor([3.0])}, {"w": torch.tensor([2.0])})
    with pytest.raises(Deviation, match="as it was loaded: w: off by") as raised:
        comparison.raise_first("as it was loaded: ")
    assert raised.value.off == 0.5


def test_a_deviation_of_another_rank_is_the_same_deviation() -> None:
    found = Deviation.unpacked(Deviation("raised KeyError: 3", kinds(KeyError()), 0.5).packed(), "rank 2: ")
    assert (str(found), found.raised, found.off) == ("rank 2: raised KeyError: 3", ("KeyError", "LookupError"), 0.5)


def test_a_note_for_reports_has_one_line_and_no_infinity() -> None:
    note = SeenDeviation("fail", "first\nsecond", ("KeyError",), float("inf")).as_note()
    assert (note["text"], note["raised"]) == ("first", ["KeyError"])
    assert note["off"] < float("inf")


_SUBJECTS = """
    from everyrank.suites import Subject, conformance

    class Nothing:
        def __init__(self, *args, **kwargs): pass
        def step(self, context_id): pass

    class Raises(Nothing):
        def __init__(self, *args, **kwargs): self.fails = "momentum" in kwargs
        def step(self, context_id):
            if self.fails: raise KeyError("on purpose")

    def of(build, ledger):
        return Subject(f"{build.__name__}-{ledger}", "rpc-optimizer", build, known=f"{ledger}.toml")

    @conformance(of(Nothing, "differs"))
    def test_wrong_as_known(case): case.run()

    @conformance(of(Nothing, "raises"))
    def test_wrong_where_an_error_is_known(case): case.run()

    @conformance(of(Raises, "raises"))
    def test_raises_as_known(case): case.run()

    @conformance(of(Raises, "differs"))
    def test_raises_where_wrong_numbers_are_known(case): case.run()
"""


def test_a_subject_that_deviates_otherwise_than_its_ledger_states_is_red(project: Project) -> None:
    head = _HEAD.replace('"a"', '"state.kept[ws2]"')
    project.write("differs.toml", head + 'match = "step 1, * off by"')
    project.write("raises.toml", head + 'raises = "KeyError"\nmatch = "on purpose"')
    project.write("test_inner.py", _SUBJECTS)
    inner = project.run("--law=state.kept")
    known = {
        name.partition("::")[2].partition("[")[0]: result.properties["outcome"]
        for name, result in inner.tests.items()
    }
    assert known == {
        "test_wrong_as_known": "known",
        "test_wrong_where_an_error_is_known": "fail",
        "test_raises_as_known": "known",
        "test_raises_where_wrong_numbers_are_known": "fail",
    }
    text = inner["test_raises_where_wrong_numbers_are_known[rpc-optimizer/state.kept[ws2]]"].text
    assert "the ledger's entry 'state.kept[ws2]' expects 'fail', nothing raised, a text with 'step 1, *" in text
    assert "seen: 'fail', raised KeyError" in text
