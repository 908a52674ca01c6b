"""Runs the two parts of a test in torch's style on the ranks of a world.

The first part (setUp, tearDown) runs once, in the process that starts the ranks; the second part (the method) runs on
each rank, on its own instance. Here the ranks exist already. Rank 0 runs the first part, and passes on what a started
process would inherit: the environment and a file name. Then every rank runs the second part.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
import types
import unittest
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everyrank.rank.context import RankContext

NEVER_STARTED = "setUp started no processes, so no rank would run this test: call self._spawn_processes() in setUp"


@dataclass(frozen=True)
class SetUpResult:
    """How the first part ended, for the other ranks."""

    kind: str = "started"  # or: skipped, failed, never
    text: str = ""
    file_name: str = ""
    more: dict[str, Any] = field(default_factory=dict)  # further arguments for the ranks of this kind of test case
    environment: dict[str, str | None] = field(default_factory=dict)  # variables that setUp changed; None: removed

    def encoded(self) -> str:
        """Return the fields as JSON."""
        return json.dumps([self.kind, self.text, self.file_name, self.more, self.environment])


#: The meeting point of the ranks that have run or skipped the second part.
_END = "the end of the ranks"

#: The second part, which each rank runs after the first part.
Body = Callable[[SetUpResult], None]


class TwoParts:
    """Both parts of one test, on one rank. ``case`` is the instance whose ``run`` is about to be called."""

    def __init__(self, rank: RankContext, case: Any, name: str, body: Body, like_a_rank: bool = False) -> None:
        self._rank = rank
        self._case = case
        self._name = name
        self._body = body
        # A process that a test case starts does not have the variables that name its rank.
        self._variables: Mapping[str, str | None] = {} if like_a_rank else rank.variables_before
        self._first = rank.world.rank == 0
        self._result: SetUpResult | None = None
        self._before: dict[str, str] = {}
        self._set_up, self._tear_down = case.setUp, case.tearDown

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """In this context, let the case's setUp, method and tearDown run this rank's parts."""
        method = getattr(self._case, self._name)

        @functools.wraps(method)
        def run_second(_: Any, *arguments: Any, **keywords: Any) -> None:
            __tracebackhide__ = True
            self._run_second()

        self._case.setUp = self._run_first if self._first else self._receive
        self._case.tearDown = self._tear_down if self._first else lambda: None
        setattr(self._case, self._name, types.MethodType(run_second, self._case))
        with environment(self._variables), _temp_folder(os.path.join(self._rank.world.host_folder, "tmp")):
            self._before = dict(os.environ)
            yield

    def started(self, more: dict[str, Any] | None = None) -> None:
        """Release the ranks; called instead of the start of processes."""
        if self._result is None and self._first:
            file_name = str(getattr(self._case, "file_name", ""))
            self._send(SetUpResult(file_name=file_name, more=more or {}, environment=changes(self._before)))

    # --- the first part ----------------------------------------------------------------------------

    def _run_first(self) -> None:
        __tracebackhide__ = True
        try:
            self._set_up()
        except unittest.SkipTest as skip:
            self._send(SetUpResult("skipped", str(skip)))
            raise
        except BaseException as error:
            self._send(SetUpResult("failed", f"{type(error).__name__} in setUp on rank 0"))
            raise
        self._send(SetUpResult("never", NEVER_STARTED))
        self._follow()

    def _send(self, result: SetUpResult) -> None:
        if self._result is None:
            self._result = result
            self._rank.gather("the start of the ranks", result.encoded())

    def _receive(self) -> None:
        __tracebackhide__ = True
        texts = self._rank.gather("the start of the ranks", "")
        ended = SetUpResult("failed", "rank 0 ended before setUp did")
        self._result = SetUpResult(*json.loads(texts[0])) if texts else ended
        self._case.rank = getattr(self._case, "MAIN_PROCESS_RANK", -1)
        self._case.file_name = self._result.file_name
        self._follow()

    def _follow(self) -> None:
        __tracebackhide__ = True
        assert self._result is not None
        if self._result.kind in ("skipped", "failed"):
            raise unittest.SkipTest(self._result.text)  # after a failed setUp, rank 0's own failure decides
        if self._result.kind == "never":
            raise AssertionError(self._result.text)

    # --- the second part ---------------------------------------------------------------------------

    def _run_second(self) -> None:
        __tracebackhide__ = True
        assert self._result is not None
        exited: SystemExit | None = None
        with environment(as_changed(self._before, self._result.environment)):
            try:
                self._body(self._result)
            except SystemExit as end:
                if end.code not in (0, None):
                    raise
                exited = end
            except (unittest.SkipTest, pytest.skip.Exception) as skip:
                # Other ranks may be in the middle of the test and wait for this rank for ever.
                self._rank.announce_skip(str(skip))
                self._rank.gather(_END, "")
                raise
        # tearDown may remove what the other ranks still use. A rank that failed does not meet the others, and
        # none waits for it.
        ways = self._rank.gather(_END, "by sys.exit()" if exited else "")
        if exited is not None and (ways is None or "" in ways):
            # Such a test may end by sys.exit(0) if all ranks do. One rank alone proves nothing.
            raise exited


@contextlib.contextmanager
def skips_by_code(skips: Mapping[str, Any]) -> Iterator[None]:
    """Turn the exit codes by which torch's decorators skip, those of ``TEST_SKIPS``, into skips."""
    __tracebackhide__ = True
    try:
        yield
    except SystemExit as end:
        reason = next((skip.message for skip in skips.values() if skip.exit_code == end.code), None)
        if reason is None:
            raise
        raise unittest.SkipTest(reason) from None


# --- classes whose group serves all their tests -------------------------------------------------------

#: The classes whose group this process has opened, with the variables that the opening set.
OPENED: pytest.StashKey[dict[type, dict[str, str]]] = pytest.StashKey()


def rendezvous_of_class(rank: RankContext) -> str:
    """Return a file beside the test's folder, since the group outlives the test."""
    return f"{rank.world.folder}.rendezvous"


def open_for_class(rank: RankContext, cls: Any) -> None:
    """Open the group of a class, as a process that serves the class does before its first test."""
    import torch.distributed as dist

    opened = rank.item.config.stash.setdefault(OPENED, {})
    if cls not in opened:
        before = dict(os.environ)
        with rank.allowing():
            cls.rank, cls.world_size = rank.world.rank, rank.world.size
            cls._init_pg(rank.world.rank, rank.world.size, rendezvous_of_class(rank))
        opened[cls] = {key: value for key, value in os.environ.items() if before.get(key) != value}
        rank.keep_group(dist.group.WORLD)
    os.environ.update(opened[cls])


# --- the environment ----------------------------------------------------------------------------------


def changes(before: Mapping[str, str]) -> dict[str, str | None]:
    now = dict(os.environ)
    names = {name for name in {*before, *now} if before.get(name) != now.get(name)}
    return {name: now.get(name) for name in names}


def as_changed(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the environment at the start of the ranks, as changes of the current one."""
    start = {**before, **changes}
    return {name: start.get(name) for name in {*start, *os.environ} if start.get(name) != os.environ.get(name)}


@contextlib.contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Make these changes, and restore the environment afterwards."""
    before = dict(os.environ)
    _set(changes)
    try:
        yield
    finally:
        _set(as_changed(before, {}))


def _set(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _temp_folder(folder: str) -> Iterator[None]:
    """Put temporary files into a folder that is removed after the test: torch's own test cases leave files behind."""
    os.makedirs(folder, exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = before
