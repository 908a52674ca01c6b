"""The ``everyrank`` command: a table of names, each imported when it is called."""
# PYTHON_ARGCOMPLETE_OK

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

import everyrank

#: Name: (description, the function, as module:function).
COMMANDS = {
    "run": ("run a subject's conformance: everyrank run module:SUBJECT", "everyrank.suites.command:run"),
    "cases": ("count a subject's cases: what a law, an optimizer or a size costs", "everyrank.suites.command:count"),
    "kill-matrix": ("prove that the laws can fail: every rogue, by law", "everyrank.suites.command:kill_matrix"),
    "parity": (
        "run a training script at several numbers of ranks, and name what parts first: everyrank parity train.py",
        "everyrank.parity.script.command:main",
    ),
    "mutate": (
        "change one collective of your tests at a time, and list what no assertion notices",
        "everyrank.mutants.command:main",
    ),
    "page": ("show run files as one HTML file", "everyrank.reports.command:page"),
    "merge": ("make one run file of the run files of all shards", "everyrank.reports.command:merge"),
    "diff": ("compare two run files: what regressed since last night", "everyrank.reports.command:diff"),
    "accept": ("update the ledgers to the outcomes of a run", "everyrank.reports.command:accept"),
    "history": ("show each law over the nights, from a folder of run files", "everyrank.reports.command:history"),
    "board": ("put the subjects of run files side by side, as one HTML file", "everyrank.reports.command:board"),
    "badge": ("make a badge from a run file", "everyrank.reports.command:badge"),
    "trace": ("make a trace of a run file: tests and ranks over time", "everyrank.reports.command:trace"),
    "schema": ("print the JSON Schema of a run file's lines", "everyrank.reports.command:schema"),
    "adopt-report": (
        "list the tests that --adopt would run, and why it would not run others",
        "everyrank.adopt.report:main",
    ),
    "doctor": ("say what this machine can run, and what to do about the rest", "everyrank.doctor.command:main"),
    "stacks": (
        "show what runs on this machine, and what every rank of a test is doing: everyrank stacks [PID]",
        "everyrank.rollcall.command:main",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Call the named command and return its exit code; 2 for a name that is not in the table."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and "_ARGCOMPLETE" in os.environ:
        given = _complete(os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])])
    if given and given[0] in COMMANDS:
        module, _, function = COMMANDS[given[0]][1].partition(":")
        try:
            code: int = getattr(importlib.import_module(module), function)(given[1:])
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            # The reader closed the pipe, as head and less do.
            importlib.import_module("everyrank.reports.command").let_go_of_stdout()
            return 0
        return code
    if given[:1] == ["--version"]:
        print(f"everyrank {everyrank.__version__}")
        return 0
    asked = given[:1] in ([], ["-h"], ["--help"])
    if not asked:
        print(f"everyrank: there is no command {given[0]!r}{_guess(given[0])}", file=sys.stderr)
    print(_usage(), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _complete(line: str) -> list[str]:
    """Let argcomplete end this process with what may follow a line in the shell.

    Return the command instead if the line is in its arguments: its own parser knows them.
    """
    import argcomplete  # it set the variables that brought us here

    words = line.split()
    if len(words) > 2 or (len(words) == 2 and line.endswith(" ")):
        os.environ["_ARGCOMPLETE"] = "2"  # the word at which the command line begins
        methods = {name: getattr(argparse.ArgumentParser, name) for name in ("parse_args", "parse_known_args")}

        def complete(parser: argparse.ArgumentParser, *_: object) -> None:
            for name, method in methods.items():
                setattr(argparse.ArgumentParser, name, method)
            argcomplete.autocomplete(parser)

        for name in methods:  # this process completes one line, and ends
            setattr(argparse.ArgumentParser, name, complete)
        return words[1:2]
    parser = argparse.ArgumentParser("everyrank")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("command", choices=COMMANDS)
    argcomplete.autocomplete(parser)
    return []


def _guess(typed: str) -> str:
    close = difflib.get_close_matches(typed.lower(), [*COMMANDS, "--version", "--help"], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {description}" for name, (description, _) in COMMANDS.items()]
    return (
        "usage: everyrank COMMAND ...\n\n"
        + "\n".join(lines)
        + "\n\neveryrank COMMAND --help explains a command; everyrank --version prints the version."
    )
