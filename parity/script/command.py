"""`everyrank parity`: start a script at several sizes, and say what parts first."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from everyrank.errors import MisuseError
from everyrank.parity.script.start import Size, run_here
from everyrank.reports.runfile.write import NotWritable, RunFile

if TYPE_CHECKING:
    from everyrank.parity.script.report import Beside

AGREE, PART, UNKNOWN = 0, 1, 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "everyrank parity",
        usage="everyrank parity [--ranks 1,2] [options] (SCRIPT | -m MODULE) [ARGUMENTS ...]",
        description="Run a training script at several numbers of ranks, as torchrun would start it, on CPU ranks and "
        "gloo, and compare the first optimizer steps. Exit codes: 0, all sizes agree; 1, they part; 2, it cannot be "
        "said.",
    )
    parser.add_argument("--ranks", default="1,2", metavar="1,2", help="the sizes; the first is the reference")
    parser.add_argument("--steps", type=int, default=3, help="how many optimizer steps are compared (3)")
    parser.add_argument(
        "--launcher", metavar="NAME", help="let a launcher of worlds start the ranks: ray, with RAY_ADDRESS, say"
    )
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="for all runs together (300)")
    parser.add_argument("--global-batch", action="store_true", help="divide a DataLoader's batch size by the ranks")
    parser.add_argument("--same-data", action="store_true", help="give each rank its rows of one rank's batches")
    parser.add_argument(
        "--fp64", action="store_true", help="run all in double: only a fault parts there, no rounding"
    )
    parser.add_argument("--keep", metavar="FOLDER", help="where each rank's output is kept")
    parser.add_argument("--run-file", metavar="FILE", help="write a run file: everyrank page FILE -o report.html")
    parser.add_argument(
        "--compare", nargs="+", metavar="FOLDER", help="compare records of everyrank.parity.observe(); no script"
    )
    parser.add_argument("--moved", metavar="FOLDER", help="with --compare: the reference, observed with moved=True")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT ARGUMENTS")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code."""
    parser = _parser()
    asked = parser.parse_args(_with_module_last(arguments))
    if asked.compare or asked.moved:
        return _compare(asked, list(arguments))
    problem, sizes = _checked(asked)
    if problem:
        print(f"everyrank parity: {problem}", file=sys.stderr)
        return UNKNOWN
    try:
        file = RunFile(Path(asked.run_file)) if asked.run_file else None
    except NotWritable as error:
        print(f"everyrank parity: --run-file: {error}", file=sys.stderr)
        return UNKNOWN
    folder = Path(asked.keep) if asked.keep else Path(tempfile.mkdtemp(prefix="everyrank-parity-"))
    folder.mkdir(parents=True, exist_ok=True)
    started = time.time()
    try:
        code, lines, besides = _run(asked, sizes, folder.absolute())
    except MisuseError as error:
        print(f"everyrank parity: --launcher: {str(error).removeprefix('--launcher: ')}", file=sys.stderr)
        return UNKNOWN
    except KeyboardInterrupt:
        print("everyrank parity: interrupted, and all ranks are ended", file=sys.stderr)
        return UNKNOWN
    if file is not None:
        from everyrank.parity.script.run_file import Command, write  # it takes torch

        write(file, Command(_name(asked), list(arguments), started, time.time() - started, besides))
    print("\n".join(lines))
    if not asked.keep and code == AGREE:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"  each rank's output: {folder}/*/rank-*.log")
    return code


def _compare(asked: argparse.Namespace, arguments: list[str]) -> int:
    from everyrank.parity.errors import Unusable  # they take torch
    from everyrank.parity.script.records import compare
    from everyrank.parity.script.run_file import Command, write

    started = time.time()
    try:
        if len(asked.compare or ()) < 2 or asked.script:
            raise Unusable("--compare takes two folders of records or more, the reference first, and no script")
        if asked.launcher:
            raise Unusable("--launcher starts a script, and no script is run by --compare")
        if asked.fp64:
            raise Unusable("--fp64 runs a script, and records are what they are: no script is run by --compare")
        found = compare(*asked.compare, moved=asked.moved)
        if asked.run_file:
            name = found.text.removeprefix("everyrank parity: ").partition(",")[0]
            write(
                RunFile(Path(asked.run_file)), Command(name, arguments, started, time.time() - started, found.besides)
            )
    except Unusable as unusable:
        print(f"everyrank parity: {unusable}", file=sys.stderr)
        return UNKNOWN
    except NotWritable as error:
        print(f"everyrank parity: --run-file: {error}", file=sys.stderr)
        return UNKNOWN
    print(found)
    return found.code


def _with_module_last(arguments: Sequence[str]) -> list[str]:
    """Return the arguments so that what follows a script or a module is left alone."""
    given = list(arguments)
    if "-m" in given:
        index = given.index("-m")
        before = given[:index]
        if not any(each.endswith(".py") for each in before):
            return [*before, "-m", "--", *given[index + 1 :]]
    return given


def _checked(asked: argparse.Namespace) -> tuple[str, list[int]]:
    """Return what is wrong with the arguments, and the sizes."""
    asked.script = [each for index, each in enumerate(asked.script) if index or each != "--"]
    try:
        sizes = [int(each) for each in asked.ranks.split(",")]
    except ValueError:
        return f"--ranks {asked.ranks} is no list of numbers: write --ranks 1,2", []
    if len(sizes) < 2 or min(sizes) < 1 or len(set(sizes)) < len(sizes):
        return f"--ranks {asked.ranks} is no list of two or more sizes: write --ranks 1,2", []
    if asked.steps < 1:
        return f"--steps {asked.steps} compares nothing: write --steps 1 or more", []
    if not asked.script:
        return "name the script: everyrank parity train.py, or everyrank parity -m package.train", []
    script = asked.script[0]
    if not asked.module and not os.path.isfile(script):
        kind = "is a folder" if os.path.isdir(script) else "does not exist"
        return f"the script {script} {kind}", []
    if asked.keep and os.path.exists(asked.keep) and (not os.path.isdir(asked.keep) or os.listdir(asked.keep)):
        kind = "has files" if os.path.isdir(asked.keep) else "is a file"
        return f"--keep {asked.keep} {kind}: name a new or an empty folder", []
    return "", sizes


def _name(asked: argparse.Namespace) -> str:
    name: str = asked.script[0]
    return name if asked.module else os.path.basename(name)


def _run(asked: argparse.Namespace, sizes: list[int], folder: Path) -> tuple[int, list[str], list[Beside]]:
    command = ["-m", *asked.script] if asked.module else list(asked.script)
    name = _name(asked)
    options = [each for each in ("global-batch", "same-data", "fp64") if getattr(asked, each.replace("-", "_"))]
    runs = [Size(size, folder / f"ranks-{size}", name) for size in sizes]
    moved = Size(sizes[0], folder / "moved", name)
    every = [*runs, moved]
    options_of = [(size, [*options, "moved"] if size is moved else options) for size in every]
    if asked.launcher:
        from everyrank.parity.script.launched import run_by  # it takes pytest

        run_by(asked.launcher, options_of, command, asked.steps, asked.limit)
    else:
        cores = len(os.sched_getaffinity(0))
        at_once = len(every) if sum(size.ranks for size in every) <= 2 * cores + 2 else 1
        run_here(options_of, at_once, command, asked.steps, asked.limit)
    from everyrank.parity.script.report import report  # it takes torch

    return report(runs, moved, asked.steps)
