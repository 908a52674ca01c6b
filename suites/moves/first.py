"""One cause, one red: of a subject's red cases of one law, a run looks for a short script for the first alone."""

from __future__ import annotations

import contextlib
import hashlib
import os

from everyrank import current_world
from everyrank.rank.context import current_rank
from everyrank.suites.errors import LIKE
from everyrank.suites.moves.together import meet
from everyrank.suites.options import SHARED


def first_red(subject: str, contract: str, law: str) -> str | None:
    """Return the first red test of this law on this subject in this run, on all ranks; None if it is this one.

    Another than the first notes that, for the end of the run. A test that runs again is the first again.
    """
    item = current_rank().item
    folder = item.config.getoption(SHARED, None) or current_rank().run_folder
    key = hashlib.sha256(repr((contract, subject, law)).encode()).hexdigest()
    found = claimed(os.path.join(folder, f"first-red-{key}"), item.nodeid) if current_world().rank == 0 else ""
    first = meet(current_world(), "the first red case", found)[0]
    if first == item.nodeid:
        return None
    item.user_properties.append((LIKE, first))
    return first


def claimed(file: str, test: str) -> str:
    """Return the test that is the first: this one, if there is none yet or if no file can be made."""
    try:
        with contextlib.suppress(FileExistsError):
            os.symlink(test, file)  # unlike a file, it comes with its text at once
        return os.readlink(file)
    except OSError:
        return test
