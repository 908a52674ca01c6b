"""The commands that read run files. Each command reads, computes, and writes only if nothing failed."""

from __future__ import annotations

import argparse
import contextlib
import functools
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


def command(function: Callable[[argparse.ArgumentParser, Sequence[str]], int]) -> Callable[[Sequence[str]], int]:
    """Make a command of a function, which describes its options to a parser and returns the exit status.

    If it cannot be done, print the reason on one line and return 2. A bug of ours returns 2 as well, with its
    traceback: Python's own status, 1, would mean a regression.
    """
    name = f"everyrank {function.__name__}"

    @functools.wraps(function)
    def answer(arguments: Sequence[str]) -> int:
        parser = argparse.ArgumentParser(
            name, description=inspect.getdoc(function), formatter_class=argparse.RawDescriptionHelpFormatter
        )
        try:
            return function(parser, arguments)
        except ReportError as error:
            print(f"{name}: {plain(str(error))}", file=sys.stderr)
        except Exception:
            traceback.print_exc()
        return 2

    return answer


@command
def page(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Make one HTML file from one or several run files. It needs no network and no other file.

    Several files are parts of one run, each with its own subjects. A history adds the earlier nights.
    """
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
    options = parser.parse_args(arguments)

    from everyrank.reports.history import history
    from everyrank.reports.page import build, output
    from everyrank.reports.page.nights import NIGHTS
    from everyrank.reports.runfile import read
    from everyrank.reports.runfile.files import keep

    runs = [read.read(path, options.partial) for path in options.runs]
    build.check_apart(runs)
    if options.against and len(runs) > 1:
        raise ReportError(f"--against {options.against}: compares one run file, not {len(runs)}")
    earlier = read.read(options.against, options.partial) if options.against else None
    inputs = [*options.runs, options.against] if options.against else options.runs
    output.check(options.output)
    nights = history.of_folder(options.history, options.partial, case_nights=NIGHTS) if options.history else None
    keep(options.output, build.page(runs, options.title, nights, earlier), inputs)
    hand_over(f"{options.output}: {output.summary(runs)}\n")
    return 0


@command
def merge(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Make one run file of the run files of all shards of a run (pytest --shard=K/N --run-file=...).

    Exit with 0 if the run is whole, with 1 if --partial left something out, with 2 if the files are not the shards
    of one run. Whether its tests passed is no matter here: ask `everyrank diff`, or look at the page.
    """
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the run file of a shard")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", default=Path("run.jsonl"),
        help="the file to write; compressed if it ends with .gz (default: run.jsonl)",
    )  # fmt: skip
    parser.add_argument(
        "--partial", action="store_true", help="merge also if shards are missing or were killed: the run is not whole"
    )
    options = parser.parse_args(arguments)

    from everyrank.reports.runfile import files, read
    from everyrank.reports.shards import merge

    runs = []
    for path in options.runs:
        try:
            runs.append(read.read(path, options.partial))
        except (EmptyFile, Cut) as error:
            if not options.partial:
                raise
            print(f"everyrank merge: left out: {plain(str(error))}", file=sys.stderr)
    lines = merge.merge(runs, options.partial)
    files.keep(options.output, merge.contents(lines, options.output), options.runs)
    missing = merge.missing(runs)
    tests = count(sum(len(run.reported) for run in runs), "multi-rank test")
    text = f"{options.output}: {count(len(runs), 'shard')}, {tests}"
    hand_over(f"{text}; not whole: {missing}\n" if missing else f"{text}\n")
    return 1 if missing else 0


@command
def diff(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Compare two run files: list the cases that regressed, were fixed, are new, slower or less exact.

    Exit with 1 if a case is red that was not red before, if cases are gone, if nothing ran, or if something went
    wrong beside the cases. Exit with 2 if a file cannot be trusted or the result cannot be written.
    """
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
    options = parser.parse_args(arguments)

    from everyrank.reports.diff import diff, pairing, render
    from everyrank.reports.runfile import read

    old, new = (read.read(path, options.partial) for path in (options.old, options.new))
    aliases = pairing.read_aliases(options.aliases, options.alias, [old])
    changes = diff.diff(old, new, aliases, options.allow_gone)
    if options.format == "json":
        text = render.as_json(changes)
    else:
        text = (render.as_text if options.format == "text" else render.as_markdown)(changes, options.most)
    hand_over(text, options.output, [options.old, options.new])
    return 0 if changes.passed else 1


@command
def accept(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Write the new deviations of a run into the ledgers of its subjects, and remove the stale entries.

    A crash, a timeout or an error is never accepted. A new entry has `issue = "unreported"`: write the link there.
    Exit with 0 if the ledgers list all deviations now, with 1 if a case was not accepted, with 2 for bad input.
    """
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
    options = parser.parse_args(arguments)

    from everyrank.reports.ledger import accept, render
    from everyrank.reports.runfile import files, read

    run = read.read(options.run, options.partial)
    ledgers = accept.chosen_ledgers(run, options.subject, options.ledger)
    edits, refused = (accept.declare_lacks if options.lacks else accept.accept)(run, ledgers, options.subject)
    if not options.dry_run:
        for edit in edits:
            files.keep(edit.ledger.path, edit.text, [options.run])
    beside = () if options.subject or options.lacks else run.conclusion.beside
    siblings = accept.siblings(run, edits)
    hand_over(render.render_edits(edits, refused, options.dry_run, beside, siblings))
    return 1 if refused or beside else 0


@command
def history(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Show each law over the nights: first bad night, flips, flake rate, time and error.

    A folder of run files is a history. The command keeps an index of the files in it.
    """
    parser.add_argument("folder", type=Path, help="the folder; run files (*.jsonl) may lie in its subfolders")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="the format (default: text)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write (default: stdout)")
    parser.add_argument("--all", action="store_true", help="in text, show also laws with nothing to report")
    parser.add_argument("--rebuild", action="store_true", help="build the index from scratch")
    parser.add_argument("--partial", action="store_true", help="count also nights whose run was killed")
    options = parser.parse_args(arguments)

    from everyrank.reports.history import history, render

    past = history.of_folder(options.folder, options.partial, options.rebuild)
    text = render.as_json(past) if options.format == "json" else render.as_text(past, options.all)
    hand_over(text, options.output, [options.folder / night.path for night in past.nights])
    return 0


@command
def badge(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Make a badge for a subject, or for the tests of a run without subjects.

    It is a shields.io endpoint (JSON), or a picture (SVG) that needs no server.
    """
    parser.add_argument("run", type=Path, help="the run file")
    parser.add_argument(
        "--subject", default="", metavar="NAME", help="the subject of the badge (needed if the run has several)"
    )
    parser.add_argument("--label", default="everyrank", help="the text on its left side (default: everyrank)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="a .json or .svg file (default: JSON to stdout)"
    )
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    options = parser.parse_args(arguments)

    from everyrank.reports import badge
    from everyrank.reports.runfile import read

    kind = options.output.suffix if options.output else ".json"
    if kind not in (".json", ".svg"):
        raise ReportError(f"{options.output}: a badge is a .json or .svg file")
    the_badge = badge.badge(read.read(options.run, options.partial), options.subject, options.label)
    hand_over(badge.as_svg(the_badge) if kind == ".svg" else badge.as_json(the_badge), options.output, [options.run])
    return 0


@command
def trace(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Make a trace of a run file, which Perfetto and Chrome's viewer open: a track for the tests, and one a rank."""
    parser.add_argument("run", type=Path, help="the run file")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write (default: stdout)")
    parser.add_argument("--partial", action="store_true", help=_PARTIAL)
    options = parser.parse_args(arguments)

    from everyrank.reports import trace
    from everyrank.reports.runfile import read

    run = read.read(options.run, options.partial)
    hand_over(trace.trace(run), options.output, [options.run])
    if options.output:
        tests = count(len(run.reported), "multi-rank test")
        hand_over(f"{options.output}: {tests}; to view it, open https://ui.perfetto.dev and drop it there\n")
    return 0


@command
def board(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Put the subjects of run files side by side: a row a subject, a column a group of laws.

    It makes one HTML file, which needs no network and no other file. Whether cases are red is no matter here: ask
    `everyrank diff`.
    """
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
    options = parser.parse_args(arguments)

    from everyrank.reports.board import badges, board, render
    from everyrank.reports.runfile import read
    from everyrank.reports.runfile.files import keep

    inputs = [*options.runs, *options.against]
    tables = board.board(
        [read.read(path, options.partial) for path in options.runs],
        [read.read(path, options.partial) for path in options.against],
    )
    keep(options.output, render.as_html(tables, options.title), inputs)
    if options.markdown:
        keep(options.markdown, render.as_markdown(tables), inputs)
    written = badges.write(tables, options.badges, inputs) if options.badges else 0
    rows = sum(len(table.rows) for table in tables)
    text = f"{options.output}: {count(rows, 'subject')} of {count(len(tables), 'contract')}"
    hand_over(f"{text}; {count(written, 'badge')} in {options.badges}\n" if written else f"{text}\n")
    return 0


@command
def schema(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Print the JSON Schema of a run file's lines."""
    parser.parse_args(arguments)

    from everyrank.reports import schema

    hand_over(schema.text())
    return 0


def _number_of_cases(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of cases, 0 or more, not {text!r}")
    return int(text)


def hand_over(text: str, output: Path | None = None, made_of: Sequence[Path] = ()) -> None:
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
        let_go_of_stdout()  # the reader closed the pipe, as head and less do
    except OSError as error:
        let_go_of_stdout()
        raise CannotWrite(f"stdout: cannot be written: {error.strerror or error}") from None


def let_go_of_stdout() -> None:
    """Point stdout at /dev/null: Python would write the rest of its buffer at exit, and print the error again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
