"""`make check` refuses files and classes that have grown too large."""

from __future__ import annotations

import subprocess
import sys

from ci.files import ROOT
from ci.sizes import CLASS, FILE, too_large


def written(lines: int) -> str:
    return "class Grown:\n" + "    number = 1\n" * (lines - 1)


def test_a_class_has_two_hundred_lines_at_the_most() -> None:
    assert CLASS == 200
    assert not [*too_large("a.py", written(200))]
    assert [*too_large("a.py", f"import os\n{written(201)}")] == [
        "a.py:2: the class Grown has 201 lines, of 200 at the most"
    ]


def test_a_class_inside_of_another_counts_too() -> None:
    inner = "".join(f"    {line}\n" for line in written(201).splitlines())
    assert len([*too_large("a.py", f"class Outer:\n{inner}")]) == 2


def test_a_file_has_four_hundred_lines_at_the_most() -> None:
    assert FILE == 400
    assert not [*too_large("a.py", "\n" * 400)]
    assert [*too_large("a.py", "\n" * 401)] == ["a.py has 401 lines, of 400 at the most"]


def test_make_check_asks() -> None:
    ran = subprocess.run([sys.executable, "-m", "ci.sizes"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    target = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    assert "-m ci.sizes" in target
