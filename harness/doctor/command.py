"""``everyrank doctor``: say what this machine can run, and what to do about the rest."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator, Sequence

import everyrank
import pytest
from everyrank.doctor import software, system, worlds
from everyrank.doctor.answer import BAD, NOTE, OK, Answer, lines
from everyrank.launch import launchers

_DESCRIPTION = """
Say what this machine can run: torch and its backends, RPC, GPUs, forks, limits, sockets, stacks; then run four small
worlds. Each line that is not ok says what to do. Exits with 1 if worlds cannot run here, or end with a wrong verdict.
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="everyrank doctor", description=_DESCRIPTION)
    parser.add_argument("--launcher", choices=launchers.BUILT_IN, help="how the worlds are started (default: fork)")
    options = parser.parse_args(arguments)
    versions = f"pytest {pytest.__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    print(f"everyrank {everyrank.__version__}, {versions}\n", flush=True)
    answers = list(_looks())
    print("\n".join(lines(answers)), flush=True)
    if any(answer.state == BAD for answer in answers):
        print("\nno world was tried: mend what is BAD first")
        return 1
    print(f"\nWorlds of {worlds.RANKS}:\n", flush=True)
    with_rpc = any((answer.name, answer.state) == ("RPC", OK) for answer in answers)
    tried = worlds.run(options.launcher, with_rpc)
    print("\n".join(lines(tried)))
    wrong = sum(answer.state == BAD for answer in tried)
    notes = sum(answer.state == NOTE for answer in answers)
    print(f"\n{_sum(wrong, notes)}")
    return 1 if wrong else 0


def _looks() -> Iterator[Answer]:
    yield software.plugin()
    yield from software.torch()
    yield software.fork()
    for look in system.LOOKS:
        answer = look()
        yield from [answer] if isinstance(answer, Answer) else answer
    yield from software.packages()


def _sum(wrong: int, notes: int) -> str:
    if wrong:
        return f"this machine cannot run multi-rank tests: {wrong} of the worlds ended as they must not"
    if notes:
        return f"this machine runs multi-rank tests; what it does not run stands under note ({notes})"
    return "this machine runs multi-rank tests"
