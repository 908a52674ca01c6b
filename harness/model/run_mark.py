"""The mark of a run: an environment variable of every rank, and so of every program that it runs."""

from __future__ import annotations

import os

#: It has the run's folder, and the keeper of the rank.
RUN_VARIABLE = "EVERYRANK_RUN"


def run_mark(run_folder: str, keeper: int) -> str:
    """Return its value for the ranks of a keeper. Keepers of one host may share the folder."""
    return f"{run_folder} {keeper}"


def folder_of_run() -> str | None:
    """Return the folder that is removed with the run of this rank; None in a process that is no rank."""
    return os.environ.get(RUN_VARIABLE, "").rpartition(" ")[0] or None
