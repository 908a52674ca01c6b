"""Run the programs of docs/findings in environments that have what their pages need, and compare what they print.

    python -m ci.findings PAGE ...         # docs/findings/PAGE.md; each environment is made in build/findings/
    python -m ci.findings --tonight 6      # six pages, other ones each day
    python -m ci.findings --here PAGE ...  # in this environment, as it is

A page opens with ``- **Needs**: `pip install NAME==VERSION ...` ``. A program is the fenced Python since the last
output. An output is an indented block whose first line is the command, ``$ python script.py``, say. What follows must
be printed, in any order, as ranks take turns, and among other lines. ``...`` stands for any text. Numbers with a
point, an exponent or a percent sign may be off by 5 %, and by what is next to nothing. Exits with 1 if a page does
not print what it states.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "findings"
ENVIRONMENTS = ROOT / "build" / "findings"

#: A program that hangs is ended. The command of one whose fault is a hang begins with ``timeout 40``.
SECONDS = 300

_FIELD = re.compile(r"^- \*\*(\w+)\*\*: (.*(?:\n  .*)*)", re.MULTILINE)
_NEEDS = re.compile(r"`pip install ([^`]+)`(?:, Python (\d\.\d+) or (\d\.\d+))?")
_BLOCK = re.compile(
    r"^```python\n(?P<code>(?:.*\n)*?)```$|(?<=\n\n) {4}\$ (?P<command>.*)\n(?P<output>(?: {4}.*\n|\n(?= {4}))*)",
    re.MULTILINE,
)
_NUMBER = r"\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+|\d+(?=%)"


class Unreadable(Exception):
    """A page that does not say what it needs."""


@dataclass(frozen=True)
class Program:
    """A program of a page, the command that runs it as script.py, and what it prints, as the page states."""

    code: str
    command: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """A page of docs/findings."""

    name: str
    text: str

    @property
    def fields(self) -> dict[str, str]:
        """The list that it opens with, by the names in bold."""
        _, opening, *_ = self.text.split("\n\n", 2)
        return {name: " ".join(value.split()) for name, value in _FIELD.findall(opening)}

    @property
    def needs(self) -> tuple[str, ...]:
        """The packages that its programs need, with their versions, as pip takes them."""
        return tuple(self._needs()[1].split())

    @property
    def pythons(self) -> tuple[str, ...]:
        """The only versions of Python that its packages know; empty if any will do."""
        return tuple(version for version in self._needs().groups()[1:] if version)

    @property
    def programs(self) -> list[Program]:
        """The programs whose output it states, in their order."""
        programs, code = [], ""
        for block in _BLOCK.finditer(self.text):
            if block["command"] is None:
                code += block["code"]
            else:
                output = textwrap.dedent(block["output"]).strip().splitlines()
                programs.append(Program(code, block["command"], tuple(output)))
                code = ""
        return programs

    def _needs(self) -> re.Match[str]:
        if match := _NEEDS.match(self.fields.get("Needs", "")):
            return match
        raise Unreadable(f"{self.name}: no line says what it needs: - **Needs**: `pip install NAME==VERSION ...`")


def read(name: str) -> Page:
    """Return a page by its name or its file."""
    return Page(Path(name).stem, (PAGES / f"{Path(name).stem}.md").read_text())


def pages() -> list[Page]:
    """Return all pages."""
    return [read(path.name) for path in sorted(PAGES.glob("*.md")) if path.name != "README.md"]


def sample(count: int, day: int) -> list[Page]:
    """Return the pages whose turn it is on a day, by its number: after some days each page has had its turn."""
    turns = itertools.cycle([page for page in pages() if page.programs])
    return list(itertools.islice(turns, day * count, (day + 1) * count))


def missing(stated: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return the lines that are stated and were not printed."""
    remaining = [line.strip() for line in printed]
    lines = []
    for line in stated:
        if line.strip() == "...":
            continue
        if (match := next((each for each in remaining if alike(line.strip(), each)), None)) is None:
            lines.append(line)
        else:
            remaining.remove(match)
    return lines


def alike(stated: str, printed: str) -> bool:
    """Return whether a printed line is the stated one."""
    pieces = re.split(rf"({_NUMBER}|\[?\.\.\.\]?)", stated)
    pattern = "".join(re.escape(piece) if index % 2 == 0 else _pattern(piece) for index, piece in enumerate(pieces))
    match = re.fullmatch(pattern, printed)
    numbers = [piece for piece in pieces[1::2] if "..." not in piece]
    return match is not None and all(map(_near, numbers, match.groups()))


def _pattern(piece: str) -> str:
    return ".*" if "..." in piece else r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)"


def _near(stated: str, printed: str) -> bool:
    nothing = 1e-5 if re.search(r"[.e]", stated) else 1  # a whole number stands before a percent sign
    return math.isclose(float(stated), float(printed), rel_tol=0.05, abs_tol=nothing)


def environment(needs: Sequence[str]) -> Path:
    """Return the folder of the programs of an environment; make it if no page has needed it so far."""
    folder = ENVIRONMENTS / hashlib.sha256(" ".join(sorted(needs)).encode()).hexdigest()[:12]
    complete = folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
        subprocess.run([*pip, "--upgrade", "pip"], check=True)
        subprocess.run([*pip, *needs], check=True)
        complete.write_text("\n".join(needs))
    return folder / "bin"


def run(program: Program, programs: Path) -> list[str]:
    """Run a program with those of an environment; return what it printed."""
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        # Each rank writes what it has printed at once, so that no line of another one stands within its own.
        own = {
            "PATH": path,
            "TMPDIR": folder,
            "PYTHONUNBUFFERED": "",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        Path(folder, "script.py").write_text(program.code)
        with Path(folder, "output").open("w+") as output:  # no pipe, which a process that is left behind would hold
            subprocess.run(
                ["timeout", "-k", "5", str(SECONDS), "bash", "-c", program.command],
                cwd=folder,
                env={**os.environ, **own},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
            output.seek(0)
            return output.read().splitlines()


def check(page: Page, programs: Path) -> list[str]:
    """Run all programs of a page; return what is wrong, in lines for a person."""
    problems = []
    for number, program in enumerate(page.programs, 1):
        printed = run(program, programs)
        if lines := missing(program.output, printed):
            problems += [f"{page.name}, program {number}: not printed:", *lines, "but this was:", *printed]
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pages that the arguments name."""
    parser = argparse.ArgumentParser(description="Run the programs of docs/findings.")
    parser.add_argument("pages", nargs="*", metavar="PAGE")
    parser.add_argument("--tonight", type=int, default=0, metavar="COUNT", help="so many pages, other ones each day")
    parser.add_argument("--here", action="store_true", help="take this environment as it is")
    options = parser.parse_args(arguments)
    today = datetime.datetime.now(datetime.timezone.utc).toordinal()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    bad = 0
    for page in [*map(read, options.pages), *sample(options.tonight, today)]:
        if page.pythons and python not in page.pythons:
            print(f"{page.name}: not run: it needs Python {' or '.join(page.pythons)}, not {python}", flush=True)
            continue
        problems = check(page, Path(sys.executable).parent if options.here else environment(page.needs))
        count = len(page.programs)
        print(*(problems or [f"{page.name}: {count} programs print what it states"]), sep="\n", flush=True)
        bad += bool(problems)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
