"""The commands that read run files: each reads, makes, and writes only when all has gone well."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from everyrank.reports.errors import CannotWrite, ReportError
from everyrank.reports.words import plain

_PARTIAL = "read also files of runs that were killed: what was never told counts as not-run"


def page(arguments: Sequence[str]) -> int:
    """Make one HTML file of one or several run files: it needs no network and no other file.

    Several files are parts of one run, of other subjects each. A history adds the nights before.
    """
    parser = _parser("page", page)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run file")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", default=Path("report.html"),
        help="where to write it; report.html if nothing is said",
    )  # fmt: skip
    parser.add_argument(
        "--history", type=Path, metavar="FOLDER", help="a folder of run files: each law over the nights"
    )
    parser.add_argument(
        "--title", default="", help="what the page is called; the names of the files if nothing is said"
    )
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    given = parser.parse_args(arguments)

    def make() -> int:
        from everyrank.reports import history, reading
        from everyrank.reports.keeping import keep
        from everyrank.reports.page import build, output
        from everyrank.reports.page.nights import NIGHTS

        runs = [reading.read(path, given.partial) for path in given.runs]
        build.check_apart(runs)
        output.check(given.output)
        nights = history.of_folder(given.history, given.partial, case_nights=NIGHTS) if given.history else None
        keep(given.output, build.page(runs, given.title, nights), given.runs)
        hand_over(f"{given.output}: {output.told(runs)}\n", None, [])
        return 0

    return answer("page", make)


def diff(arguments: Sequence[str]) -> int:
    """Compare two run files: what regressed, what was fixed, what is new, slower or less exact.

    Ends with 1 if a case is red that was not, if cases are gone, if nothing ran, or if anything went wrong beside the
    cases; with 2 if a file cannot be believed, or the result not be written.
    """
    parser = _parser("diff", diff)
    parser.add_argument("old", type=Path, help="the run file of last night")
    parser.add_argument("new", type=Path, help="the run file of tonight")
    parser.add_argument(
        "--format", choices=("text", "markdown", "json"), default="text", help="text if nothing is said"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where to write it; stdout if nothing is said"
    )
    parser.add_argument(
        "--alias", action="append", default=[], metavar="OLD=NEW",
        help="a law that was renamed; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--aliases", type=Path, metavar="FILE",
        help="a TOML file of what was renamed: tables [laws] and [subjects] with lines such as \"old\" = \"new\"",
    )  # fmt: skip
    parser.add_argument(
        "--allow-gone",
        action="store_true",
        help="cases of the older run may be missing: they were removed on purpose",
    )
    parser.add_argument("--most", type=_number, default=5, metavar="N", help="cases to name for each law (5; 0: all)")
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    given = parser.parse_args(arguments)

    def compare() -> int:
        from everyrank.reports import diff, diff_told, pairing, reading

        old, new = (reading.read(path, given.partial) for path in (given.old, given.new))
        aliases = pairing.read_aliases(given.aliases, given.alias, [old])
        found = diff.diff(old, new, aliases, given.allow_gone)
        if given.format == "json":
            told = diff_told.as_json(found)
        else:
            told = (diff_told.as_text if given.format == "text" else diff_told.as_markdown)(found, given.most)
        hand_over(told, given.output, [given.old, given.new])
        return 0 if found.passed else 1

    return answer("diff", compare)


def accept(arguments: Sequence[str]) -> int:
    """Write the new deviations of a run into the ledgers of its subjects, and take the stale entries out.

    Never accepts a crash, a timeout or an error. A new entry says `issue = "unreported"`: the link is yours to write.
    Ends with 0 if the ledgers say it all now, with 1 if something is left that no ledger takes, with 2 for bad input.
    """
    parser = _parser("accept", accept)
    parser.add_argument("run", type=Path, help="the run file")
    parser.add_argument("--subject", action="append", metavar="NAME", help="only of this subject; may be repeated")
    parser.add_argument("--ledger", type=Path, metavar="PATH", help="the ledger of the one subject that names none")
    parser.add_argument("--dry-run", action="store_true", help="show what would be changed, and write nothing")
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    given = parser.parse_args(arguments)

    def bring_up_to_date() -> int:
        from everyrank.reports import accept, accept_told, keeping, reading

        run = reading.read(given.run, given.partial)
        edits, left = accept.accept(run, accept.chosen_ledgers(run, given.subject, given.ledger), given.subject)
        if not given.dry_run:
            for edit in edits:
                keeping.keep(edit.ledger.path, edit.text, [given.run])
        beside = () if given.subject else run.conclusion.beside
        hand_over(accept_told.told(edits, left, given.dry_run, beside), None, [])
        return 1 if left or beside else 0

    return answer("accept", bring_up_to_date)


def history(arguments: Sequence[str]) -> int:
    """Show each law over the nights: first bad night, flips, flake rate, time and error.

    A folder of run files is a history. An index is kept in it, which follows the files.
    """
    parser = _parser("history", history)
    parser.add_argument("folder", type=Path, help="the folder; run files (*.jsonl) may lie in folders of it")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="text if nothing is said")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where to write it; stdout if nothing is said"
    )
    parser.add_argument("--all", action="store_true", help="in text, also the laws of which there is nothing to tell")
    parser.add_argument("--rebuild", action="store_true", help="make the index anew in any case")
    parser.add_argument("--partial", action="store_true", help="count also nights whose run was killed")
    given = parser.parse_args(arguments)

    def look_back() -> int:
        from everyrank.reports import history, history_told

        found = history.of_folder(given.folder, given.partial, given.rebuild)
        told = history_told.as_json(found) if given.format == "json" else history_told.as_text(found, given.all)
        hand_over(told, given.output, [given.folder / night.path for night in found.nights])
        return 0

    return answer("history", look_back)


def badge(arguments: Sequence[str]) -> int:
    """Make a subject's badge: a shields.io endpoint (JSON), or a picture (SVG) that needs no server."""
    parser = _parser("badge", badge)
    parser.add_argument("run", type=Path, help="the run file")
    parser.add_argument("--subject", required=True, metavar="NAME", help="whose badge it is")
    parser.add_argument("--label", default="everyrank", help="what stands on its left (everyrank)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="a .json or .svg; JSON to stdout without it"
    )
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    given = parser.parse_args(arguments)

    def make() -> int:
        from everyrank.reports import badge, reading

        kind = given.output.suffix if given.output else ".json"
        if kind not in (".json", ".svg"):
            raise ReportError(f"{given.output}: a badge is a .json or an .svg")
        made = badge.badge(reading.read(given.run, given.partial), given.subject, given.label)
        hand_over(badge.as_svg(made) if kind == ".svg" else badge.as_json(made), given.output, [given.run])
        return 0

    return answer("badge", make)


def _parser(name: str, function: Callable[..., int]) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        f"everyrank {name}",
        description=inspect.getdoc(function),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def hand_over(told: str, output: Path | None, made_of: Sequence[Path]) -> None:
    """To the file that was asked for, or to stdout. Raises `CannotWrite`: a full disk is no regression."""
    if output is not None:
        from everyrank.reports.keeping import keep

        return keep(output, told, made_of)
    if sys.stdout is None:
        raise CannotWrite("stdout: cannot be written: it is closed")
    # Ids hold what tests put into them; a terminal may not know the letters.
    with contextlib.suppress(AttributeError, ValueError):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        sys.stdout.write(told)
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go_of_stdout()  # its reader has seen enough (head, less)
    except OSError as error:
        _let_go_of_stdout()
        raise CannotWrite(f"stdout: cannot be written: {error.strerror or error}") from None


def _let_go_of_stdout() -> None:
    """Python would write what is left at its exit, and complain once more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def answer(name: str, work: Callable[[], int]) -> int:
    """Do it; where it cannot be done, say why on one line and end with 2.

    So does a fault of ours, with its traceback: Python's own status for it, 1, would say that something regressed.
    """
    try:
        return work()
    except ReportError as error:
        print(f"everyrank {name}: {plain(str(error))}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return 2
