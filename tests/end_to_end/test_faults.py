"""The list of planted faults fits the code. ``make faults`` plants them, and runs the tests that they name."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ci.faults import ROOT, Copy, Ended, Fault, read_faults

FAULTS = read_faults()
A_FAULT = Fault("name", "A mistake.", "harness/cli.py", "text", "other text", ("tests/test_x.py",))


def test_there_are_30_faults_with_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30


def test_a_fault_is_another_line_of_the_product() -> None:
    for fault in FAULTS:
        assert fault.file.startswith(("harness/", "suites/", "reports/", "fixtures/", "parity/")), fault.name
        assert fault.planted(fault.source) != fault.source, fault.name
        assert not fault.file.endswith(".py") or compile(fault.planted(fault.source), fault.file, "exec")


def test_a_fault_names_tests_that_are_there() -> None:
    for fault in FAULTS:
        for test in fault.tests:
            file, *_, function = test.split("::") if "::" in test else (test, "test_")
            there = re.search(rf"def {function.partition('[')[0]}", (ROOT / file).read_text())
            assert there, f"which test sees {fault.name} now, not {test}?"


@pytest.mark.parametrize("source", ["no such line", "text and text"], ids=["gone", "twice"])
def test_a_fault_whose_text_is_not_there_once_is_refused(source: str) -> None:
    with pytest.raises(SystemExit, match="and must occur once"):
        A_FAULT.planted(source)


def test_a_fault_of_two_lines_is_refused() -> None:
    with pytest.raises(SystemExit, match="in one line"):
        replace(A_FAULT, put="other\ntext").planted("text")


@pytest.mark.parametrize(
    ("code", "output", "verdict"),
    [
        (0, "1 passed", "GREEN"),
        (1, "FAILED tests/test_x.py::test_y - no", "red"),
        (1, "ERROR tests/test_x.py::test_y - a fixture failed", "red"),
        (1, "___ ERROR collecting tests/test_x.py ___", "broken: pytest ended with 1"),
        (2, "", "broken: pytest ended with 2"),
        (5, "no tests ran", "broken: pytest ended with 5"),
        (None, "", "hung"),
    ],
)  # fmt: skip
def test_only_a_test_that_fails_makes_a_fault_red(code: int | None, output: str, verdict: str) -> None:
    assert Ended(code, output, 1.0).verdict == verdict


def test_an_environment_of_a_copy_has_the_copy_and_the_projects_plugins(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    module = copy.package / "everyrank" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    copy.write_environment()
    program = "import everyrank, importlib.metadata as m; print(everyrank.__file__, m.entry_points(name='everyrank'))"
    command = [copy.python, "-c", program]
    out = subprocess.run(command, env=copy.variables(), capture_output=True, text=True, check=True).stdout
    assert out.startswith(str(module))
    assert "everyrank.plugin" in out
    program = copy.python.with_name("pytest").read_text()
    assert str(copy.python) in program
    assert sys.executable not in program


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"faults\.toml has no fault no-such-fault"):
        read_faults(["no-such-fault"])
