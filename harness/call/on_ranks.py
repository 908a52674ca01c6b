"""What pytest collects for a call of ``everyrank.run``: one test, which makes the call on each rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from everyrank.call.plugin import CALL, RETURNED
from everyrank.call.value import pack
from everyrank.rank import context
from everyrank.rank.world import World


def test_call(request: pytest.FixtureRequest, world: World) -> None:
    __tracebackhide__ = True
    call = request.config.stash[CALL]
    if call.group:
        request.getfixturevalue("process_group")
    with _printing():
        returned = call.function()
    path = Path(world.beside(f"returned-{world.rank}"))
    path.write_bytes(pack(call.function, returned))
    context.notes()[RETURNED] = os.fsencode(path).hex()  # the texts of notes are valid Unicode, paths need not be


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """Print to this rank's output: a fork has the streams of its caller, which a notebook or a test has replaced."""
    with _lines(1) as out, _lines(2) as err, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def _lines(fd: int) -> IO[str]:
    return open(fd, "w", buffering=1, errors="backslashreplace", closefd=False)
