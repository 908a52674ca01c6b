"""The two halves of the kill matrix: the laws that a rogue names, and a sample of all others.

A rogue must die by the laws that it names, and by no others. The first half always runs. Of the second, a run has
one part of twelve, in turn by the commit, so that twelve commits in a row have all of it. ``--others=all`` has it at
once, and tries all cases of a law on a rogue that one of them has killed (``first_kill.py``).
"""

from __future__ import annotations

import os
import re
import subprocess
import zlib
from collections.abc import Collection
from dataclasses import dataclass

#: In how many parts the second half is cut.
PARTS = 12

_VARIABLE = "EVERYRANK_OTHERS"

#: The variable of a run that writes what is tried first; see ``first_kill.py``.
WRITES_KILLERS = "EVERYRANK_WRITE_KILLERS"


@dataclass(frozen=True)
class Sample:
    """One part of the pairs of a rogue and a law that it does not name."""

    number: int = 1
    parts: int = 1
    reason: str = ""
    """Why it is this part."""
    named: frozenset[str] = frozenset()
    """Laws that are tried on no rogue but those that name them."""

    def has(self, rogue: str, law: str, breaks: Collection[str]) -> bool:
        """Return whether the law is tried on the rogue."""
        if law in self.named and law not in breaks:
            return False
        return law in breaks or zlib.crc32(f"{rogue}/{law}".encode()) % self.parts == self.number - 1

    def __str__(self) -> str:
        if self.parts == 1:
            return "each rogue was tried on all laws"
        return (
            f"each rogue was tried on the laws that it names, and on part {self.number} of {self.parts} of all others"
            f"{self.reason}; --others=all tries all"
        )


#: All of them.
ALL = Sample()


def parsed(text: str) -> Sample:
    """Read a part such as 3/12, or ``all``. Raise ValueError with a sentence if it is neither."""
    if text == "all":
        return ALL
    number, _, parts = text.partition("/")
    if not re.fullmatch(r"\d+/\d+", text) or not 1 <= int(number) <= int(parts):
        raise ValueError(f"--others is all, or one of several parts such as 3/{PARTS}, not {text!r}")
    return Sample(int(number), int(parts))


def by_commit() -> Sample:
    """Return the part whose turn it is: another one for each commit of the repository in the current folder."""
    asked = ["git", "rev-list", "--count", "HEAD"]
    try:
        done = subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return Sample(1, PARTS, ", since this folder has no commits")
    commits = int(done.stdout)
    return Sample(commits % PARTS + 1, PARTS, f", by the number of commits, {commits}")


def as_environment(sample: Sample) -> dict[str, str]:
    """Return the variable by which the processes of a run know its sample."""
    return {_VARIABLE: f"{sample.number}/{sample.parts}{sample.reason}"}


def requested() -> Sample:
    """Return the sample of this run. It is in the environment, where the workers of pytest-xdist find it too."""
    text, comma, reason = os.environ.get(_VARIABLE, "1/1").partition(",")
    number, _, parts = text.partition("/")
    return Sample(int(number), int(parts), comma + reason)
