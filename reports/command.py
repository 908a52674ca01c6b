"""The commands that read run files. Each command reads, computes, and writes only if nothing failed."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from everyrank.model.counts import count
from everyrank.reports.errors import CannotWrite, Cut, EmptyFile, ReportError
from everyrank.reports.text import plain

_PARTIAL = "read also files of runs that were killed: a case without a line counts as not-run"


def page(arguments: Sequence[str]) -> int:
    """Make one HTML file from one or several run files. It needs no network and no other file.

    Several files are parts of one run, each with its own subjects. A history adds the earlier nights.
    """
    parser = _parser("page", page)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run file")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", default=Path("report.html"),
        help="the file to write (default: report.html)",
    )  # fmt: skip
    parser.add_argument(
        "--history", type=Path, metavar="FOLDER", help="a folder of run files: shows each law over the nights"
    )
    parser.add_argument(
        "--against", type=Path, metavar="RUN", help="an earlier run file: shows each case beside how it ended then"
    )
    parser.add_argument("--title", default="", help="the page's title (default: the names of the files)")
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    given = parser.parse_args(arguments)

    def make() -> int:
        from everyrank.reports.history import history
        from everyrank.reports.page import build, output
        from everyrank.reports.page.nights import NIGHTS
        from everyrank.reports.runfile import read
        from everyrank.reports.runfile.files import keep

        runs = [read.read(path, given.partial) for path in given.runs]
        build.check_apart(runs)
        if given.against and len(runs) > 1:
            raise ReportError(f"--against {given.against}: compares one run file, not {len(runs)}")
        earlier = read.read(given.against, given.partial) if given.against else None
        inputs = [*given.runs, given.against] if given.against else given.runs
        output.check(given.output)
        nights = history.of_folder(given.history, given.partial, case_nights=NIGHTS) if given.history else None
        keep(given.output, build.page(runs, given.title, nights, earlier), inputs)
        hand_over(f"{given.output}: {output.summary(runs)}\n", None, [])
        return 0

    return answer("page", make)


def merge(arguments: Sequence[str]) -> int:
    """Make one run file of the run files of all shards of a run (pytest --shard=K/N --run-file=...).

    Exit with 0 if the run is whole, with 1 if --partial left something out, with 2 if the files are not the shards
    of one run. Whether its tests passed is no matter here: ask `everyrank diff`, or look at the page.
    """
    parser = _parser("merge", merge)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the run file of a shard")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", default=Path("run.jsonl"),
        help="the file to write; compressed if it ends with .gz (default: run.jsonl)",
    )  # fmt: skip
    parser.add_argument(
        "--partial", action="store_true", help="merge also if shards are missing or were killed: the run is not whole"
    )
    given = parser.parse_args(arguments)

    def join() -> int:
        from everyrank.reports.runfile import files, read
        from everyrank.reports.shards import merge

        runs = []
        for path in given.runs:
            try:
                runs.append(read.read(path, given.partial))
            except (EmptyFile, Cut) as error:
                if not given.partial:
                    raise
                print(f"everyrank merge: left out: {plain(str(error))}", file=sys.stderr)
        lines = merge.merge(runs, given.partial)
        files.keep(given.output, merge.contents(lines, given.output), given.runs)
        missing = merge.missing(runs)
        tests = count(sum(len(run.reported) for run in runs), "multi-rank test")
        text = f"{given.output}: {count(len(runs), 'shard')}, {tests}"
        hand_over(f"{text}; not whole: {missing}\n" if missing else f"{text}\n", None, [])
        return 1 if missing else 0

    return answer("merge", join)


def diff(arguments: Sequence[str]) -> int:
    """Compare two run files: list the cases that regressed, were fixed, are new, slower or less exact.

    Exit with 1 if a case is red that was not red before, if cases are gone, if nothing ran, or if something went
    wrong beside the cases. Exit with 2 if a file cannot be trusted or the result cannot be written.
    """
    parser = _parser("diff", diff)
    parser.add_argument("old", type=Path, help="the run file of last night")
    parser.add_argument("new", type=Path, help="the run file of tonight")
    parser.add_argument(
        "--format", choices=("text", "markdown", "json"), default="text", help="the format (default: text)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write (default: stdout)")
    parser.add_argument(
        "--alias", action="append", default=[], metavar="OLD=NEW",
        help="a law that was renamed; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--aliases", type=Path, metavar="FILE",
        help="a TOML file of renames: tables [laws] and [subjects] with lines such as \"old\" = \"new\"",
    )  # fmt: skip
    parser.add_argument(
        "--allow-gone",
        action="store_true",
        help="do not fail if cases of the older run are missing: they were removed on purpose",
    )
    parser.add_argument(
        "--most",
        type=_number_of_cases,
        default=5,
        metavar="N",
        help="how many cases to name for each law (default: 5; 0: all)",
    )
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    given = parser.parse_args(arguments)

    def compare() -> int:
        from everyrank.reports.diff import diff, pairing, render
        from everyrank.reports.runfile import read

        old, new = (read.read(path, given.partial) for path in (given.old, given.new))
        aliases = pairing.read_aliases(given.aliases, given.alias, [old])
        found = diff.diff(old, new, aliases, given.allow_gone)
        if given.format == "json":
            text = render.as_json(found)
        else:
            text = (render.as_text if given.format == "text" else render.as_markdown)(found, given.most)
        hand_over(text, given.output, [given.old, given.new])
        return 0 if found.passed else 1

    return answer("diff", compare)


def accept(arguments: Sequence[str]) -> int:
    """Write the new deviations of a run into the ledgers of its subjects, and remove the stale entries.

    A crash, a timeout or an error is never accepted. A new entry has `issue = "unreported"`: write the link there.
    Exit with 0 if the ledgers list all deviations now, with 1 if a case was not accepted, with 2 for bad input.
    """
    parser = _parser("accept", accept)
    parser.add_argument("run", type=Path, help="the run file")
    parser.add_argument("--subject", action="append", metavar="NAME", help="only this subject; may be repeated")
    parser.add_argument("--ledger", type=Path, metavar="PATH", help="the ledger of the one subject that names none")
    parser.add_argument(
        "--lacks",
        action="store_true",
        help="declare in the ledgers which capabilities subjects turned out to lack, and accept nothing else",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the changes, and write nothing")
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    given = parser.parse_args(arguments)

    def bring_up_to_date() -> int:
        from everyrank.reports.ledger import accept, render
        from everyrank.reports.runfile import files, read

        run = read.read(given.run, given.partial)
        ledgers = accept.chosen_ledgers(run, given.subject, given.ledger)
        edits, left = (accept.declare_lacks if given.lacks else accept.accept)(run, ledgers, given.subject)
        if not given.dry_run:
            for edit in edits:
                files.keep(edit.ledger.path, edit.text, [given.run])
        beside = () if given.subject or given.lacks else run.conclusion.beside
        siblings = accept.siblings(run, edits)
        hand_over(render.render_edits(edits, left, given.dry_run, beside, siblings), None, [])
        return 1 if left or beside else 0

    return answer("accept", bring_up_to_date)


def history(arguments: Sequence[str]) -> int:
    """Show each law over the nights: first bad night, flips, flake rate, time and error.

    A folder of run files is a history. The command keeps an index of the files in it.
    """
    parser = _parser("history", history)
    parser.add_argument("folder", type=Path, help="the folder; run files (*.jsonl) may lie in its subfolders")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="the format (default: text)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write (default: stdout)")
    parser.add_argument("--all", action="store_true", help="in text, show also laws with nothing to report")
    parser.add_argument("--rebuild", action="store_true", help="build the index from scratch")
    parser.add_argument("--partial", action="store_true", help="count also nights whose run was killed")
    given = parser.parse_args(arguments)

    def look_back() -> int:
        from everyrank.reports.history import history, render

        found = history.of_folder(given.folder, given.partial, given.rebuild)
        text = render.as_json(found) if given.format == "json" else render.as_text(found, given.all)
        hand_over(text, given.output, [given.folder / night.path for night in found.nights])
        return 0

    return answer("history", look_back)


def badge(arguments: Sequence[str]) -> int:
    """Make a badge for a subject, or for the tests of a run without subjects.

    It is a shields.io endpoint (JSON), or a picture (SVG) that needs no server.
    """
    parser = _parser("badge", badge)
    parser.add_argument("run", type=Path, help="the run file")
    parser.add_argument(
        "--subject", default="", metavar="NAME", help="the subject of the badge (needed if the run has several)"
    )
    parser.add_argument("--label", default="everyrank", help="the text on its left side (default: everyrank)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="a .json or .svg file (default: JSON to stdout)"
    )
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    given = parser.parse_args(arguments)

    def make() -> int:
        from everyrank.reports import badge
        from everyrank.reports.runfile import read

        kind = given.output.suffix if given.output else ".json"
        if kind not in (".json", ".svg"):
            raise ReportError(f"{given.output}: a badge is a .json or .svg file")
        made = badge.badge(read.read(given.run, given.partial), given.subject, given.label)
        hand_over(badge.as_svg(made) if kind == ".svg" else badge.as_json(made), given.output, [given.run])
        return 0

    return answer("badge", make)


def trace(arguments: Sequence[str]) -> int:
    """Make a trace of a run file, which Perfetto and Chrome's viewer open: a track for the tests, and one a rank."""
    parser = _parser("trace", trace)
    parser.add_argument("run", type=Path, help="the run file")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write (default: stdout)")
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    given = parser.parse_args(arguments)

    def make() -> int:
        from everyrank.reports import trace
        from everyrank.reports.runfile import read

        run = read.read(given.run, given.partial)
        hand_over(trace.trace(run), given.output, [given.run])
        if given.output:
            tests = count(len(run.reported), "multi-rank test")
            hand_over(
                f"{given.output}: {tests}; to view it, open https://ui.perfetto.dev and drop it there\n", None, []
            )
        return 0

    return answer("trace", make)


def board(arguments: Sequence[str]) -> int:
    """Put the subjects of run files side by side: a row a subject, a column a group of laws.

    It makes one HTML file, which needs no network and no other file. Whether cases are red is no matter here: ask
    `everyrank diff`.
    """
    parser = _parser("board", board)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run file; each has its own subjects")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", default=Path("board.html"),
        help="the file to write (default: board.html)",
    )  # fmt: skip
    parser.add_argument(
        "--against", type=Path, nargs="+", default=[], metavar="RUN",
        help="the run files of an earlier board: cells with more or fewer red cases say so",
    )  # fmt: skip
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown, too")
    parser.add_argument("--badges", type=Path, metavar="FOLDER", help="write a badge (SVG) for each subject, too")
    parser.add_argument("--title", default="", help="the page's title")
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    given = parser.parse_args(arguments)

    def make() -> int:
        from everyrank.reports.board import badges, board, render
        from everyrank.reports.runfile import read
        from everyrank.reports.runfile.files import keep

        inputs = [*given.runs, *given.against]
        tables = board.board(
            [read.read(path, given.partial) for path in given.runs],
            [read.read(path, given.partial) for path in given.against],
        )
        keep(given.output, render.as_html(tables, given.title), inputs)
        if given.markdown:
            keep(given.markdown, render.as_markdown(tables), inputs)
        made = badges.write(tables, given.badges, inputs) if given.badges else 0
        rows = sum(len(table.rows) for table in tables)
        text = f"{given.output}: {count(rows, 'subject')} of {count(len(tables), 'contract')}"
        hand_over(f"{text}; {count(made, 'badge')} in {given.badges}\n" if made else f"{text}\n", None, [])
        return 0

    return answer("board", make)


def _parser(name: str, function: Callable[..., int]) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        f"everyrank {name}",
        description=inspect.getdoc(function),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _number_of_cases(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of cases, 0 or more, not {text!r}")
    return int(text)


def hand_over(text: str, output: Path | None, made_of: Sequence[Path]) -> None:
    """Write the text to the file that was asked for, or to stdout. Raise `CannotWrite` if that fails.

    A full disk must not look like a regression, hence an error of its own.
    """
    if output is not None:
        from everyrank.reports.runfile.files import keep

        return keep(output, text, made_of)
    if sys.stdout is None:
        raise CannotWrite("stdout: cannot be written: it is closed")
    # Ids may hold any characters. The terminal's encoding may lack some.
    with contextlib.suppress(AttributeError, ValueError):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go_of_stdout()  # the reader closed the pipe, as head and less do
    except OSError as error:
        _let_go_of_stdout()
        raise CannotWrite(f"stdout: cannot be written: {error.strerror or error}") from None


def _let_go_of_stdout() -> None:
    """Point stdout at /dev/null: Python would write the rest of its buffer at exit, and print the error again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def answer(name: str, work: Callable[[], int]) -> int:
    """Do the work and return its exit status. If it cannot be done, print the reason on one line and return 2.

    A bug of ours returns 2 as well, with its traceback: Python's own status, 1, would mean a regression.
    """
    try:
        return work()
    except ReportError as error:
        print(f"everyrank {name}: {plain(str(error))}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return 2
