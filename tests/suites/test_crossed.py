"""How much green crossings have asked: counted where tests run, put together, and written down at the end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from everyrank.reports.runfile.read import read
from everyrank.suites.collect.crossed import Crossed
from everyrank.suites.errors import CROSSED
from everyrank.suites.moves.coverage import asked, covered
from everyrank.suites.moves.crossing import events_in, text_of
from everyrank.suites.moves.file import stored
from everyrank.suites.trainer.player import TrainerPlayer

from tests.inner import Project

_TEXTS = [text_of(script.events) for script, _ in stored(TrainerPlayer)]


def test_events_are_read_back_from_their_line() -> None:
    assert [text_of(events_in(text)) for text in _TEXTS] == _TEXTS


def test_what_comes_twice_is_counted_once() -> None:
    once = covered(TrainerPlayer, ["step.0 step.0 save.0 load.0"])
    assert (once.counts()["pairs"], once.counts()["triples"]) == (3, 3)
    assert covered(TrainerPlayer, ["step.0 step.0 save.0 load.0"] * 2).counts() == once.counts()


def test_two_parts_of_a_run_have_together_what_the_whole_has() -> None:
    parts = [covered(TrainerPlayer, _TEXTS[start::2]) for start in (0, 1)]
    whole = covered(TrainerPlayer, _TEXTS)
    assert parts[0] | parts[1] == whole
    assert whole.counts() == asked(TrainerPlayer)
    assert all(part.counts()[name] < number for part in parts for name, number in whole.counts().items())


def _heard(texts: list[str], contract: str = "trainer") -> Crossed:
    crossed = Crossed()
    for text in texts:
        properties = [("contract", contract), ("subject", "mine"), (CROSSED, text)]
        crossed.pytest_runtest_logreport(SimpleNamespace(when="call", user_properties=properties))
    return crossed


def _end(crossed: Crossed) -> dict[str, Any]:
    end: dict[str, Any] = {}
    crossed.pytest_everyrank_ended(config=SimpleNamespace(), end=end)  # type: ignore[arg-type]
    return end


def test_a_controller_puts_together_what_its_workers_have_counted() -> None:
    alone = _heard(_TEXTS[:40])
    alone.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace()))  # type: ignore[arg-type]
    controller = Crossed()
    for texts in (_TEXTS[:10], _TEXTS[10:40], []):
        output: dict[str, Any] = {}
        _heard(texts).pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace(workeroutput=output)))  # type: ignore[arg-type]
        controller.pytest_testnodedown(SimpleNamespace(workeroutput=output))
    assert _end(controller) == _end(alone)
    assert [*controller._lines()] == [*alone._lines()] != []


def test_a_contract_that_is_not_installed_is_left_out() -> None:
    crossed = _heard(["step.0"], "nobody's")
    crossed.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace()))  # type: ignore[arg-type]
    assert _end(crossed) == {}


def test_a_test_that_calls_the_law_by_itself_is_no_case() -> None:
    crossed = Crossed()
    crossed.pytest_runtest_logreport(SimpleNamespace(when="call", user_properties=[(CROSSED, "step.0")]))
    crossed.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace()))  # type: ignore[arg-type]
    assert _end(crossed) == {}


_SUBJECT = """
    from everyrank.suites import conformance
    from everyrank.suites.trainer.subjects.exemplars import DATA_PARALLEL

    @conformance(DATA_PARALLEL)
    def test_it(case): case.run()
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_run_file_has_the_share_that_was_asked(
    module_project: Project, tmp_path: Path, workers: tuple[str, ...]
) -> None:
    module_project.write("test_mine.py", _SUBJECT)
    file = tmp_path / "run.jsonl"
    chosen = "crossings and (001 or 002)"
    ran = module_project.run("--profile=full", "-k", chosen, f"--run-file={file}", *workers)
    assert ran.code == 0, ran.out
    footer = read(file).footer
    assert footer is not None
    (part,) = footer.crossings
    expected = covered(TrainerPlayer, _TEXTS[:2])
    assert (part.contract, part.scripts) == ("trainer", 2)
    assert {name: getattr(part, name) for name in ("pairs", "triples", "flows")} == {
        name: (number, asked(TrainerPlayer)[name]) for name, number in expected.counts().items()
    }
    assert "conformance: crossings of trainer, 1 subject: " in ran.out
