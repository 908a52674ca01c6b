"""Tests in torch's way have two parts: that of the process which starts the ranks (setUp, tearDown; once), and
that of each rank (the method alone, on an instance of its own).

Here the ranks are there already. Rank 0 does the first part, and tells the others what a started process would
have got from it: the environment and a file name. Then every rank does the second part.
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
    from everyrank.rank import Rank

NEVER_STARTED = (
    "setUp started no processes, so that no rank would have run this test: call self._spawn_processes() in setUp"
)


@dataclass(frozen=True)
class Start:
    """What the first part says to the ranks."""

    kind: str = "started"  # or: skipped, failed, never
    text: str = ""
    file_name: str = ""
    more: dict[str, Any] = field(default_factory=dict)  # what the kind of test case has to say besides
    environment: dict[str, str | None] = field(default_factory=dict)  # what setUp changed; None: taken away

    def encoded(self) -> str:
        return json.dumps([self.kind, self.text, self.file_name, self.more, self.environment])


#: Where all ranks meet that have done, or skipped, the second part.
_END = "the end of the ranks"

#: The second part: what a rank does when the first part has started it.
Body = Callable[[Start], None]


class Parts:
    """Both parts of one test, on one rank. ``case`` is the instance whose ``run`` is about to be called."""

    def __init__(self, rank: Rank, case: Any, name: str, body: Body, like_a_rank: bool = False) -> None:
        self._rank = rank
        self._case = case
        self._name = name
        self._body = body
        # The variables that say which rank this is: a process that a test case starts does not have them.
        self._outside: Mapping[str, str | None] = {} if like_a_rank else rank.outside
        self._first = rank.world.rank == 0
        self._start: Start | None = None
        self._before: dict[str, str] = {}
        self._set_up, self._tear_down = case.setUp, case.tearDown

    @contextlib.contextmanager
    def played(self) -> Iterator[None]:
        """While the case runs in here, its setUp, method and tearDown are the parts of this rank."""
        method = getattr(self._case, self._name)

        @functools.wraps(method)
        def second(_: Any, *arguments: Any, **keywords: Any) -> None:
            __tracebackhide__ = True
            self._do_second()

        self._case.setUp = self._do_first if self._first else self._hear
        self._case.tearDown = self._tear_down if self._first else lambda: None
        setattr(self._case, self._name, types.MethodType(second, self._case))
        with _environment(self._outside), _temp_folder(os.path.join(self._rank.world.folder, "tmp")):
            self._before = dict(os.environ)
            yield

    def started(self, more: dict[str, Any] | None = None) -> None:
        """For what stands in for the start of processes: from here on the ranks have what they need."""
        if self._start is None and self._first:
            file_name = str(getattr(self._case, "file_name", ""))
            self._tell(Start(file_name=file_name, more=more or {}, environment=_changes(self._before)))

    # --- the first part ----------------------------------------------------------------------------

    def _do_first(self) -> None:
        __tracebackhide__ = True
        try:
            self._set_up()
        except unittest.SkipTest as skip:
            self._tell(Start("skipped", str(skip)))
            raise
        except BaseException as error:
            self._tell(Start("failed", f"{type(error).__name__} in setUp on rank 0"))
            raise
        self._tell(Start("never", NEVER_STARTED))
        self._obey()

    def _tell(self, start: Start) -> None:
        if self._start is None:
            self._start = start
            self._rank.gather("the start of the ranks", start.encoded())

    def _hear(self) -> None:
        __tracebackhide__ = True
        texts = self._rank.gather("the start of the ranks", "")
        self._start = Start(*json.loads(texts[0])) if texts else Start("failed", "rank 0 ended before setUp did")
        self._case.rank = getattr(self._case, "MAIN_PROCESS_RANK", -1)
        self._case.file_name = self._start.file_name
        self._obey()

    def _obey(self) -> None:
        __tracebackhide__ = True
        assert self._start is not None
        if self._start.kind in ("skipped", "failed"):
            raise unittest.SkipTest(self._start.text)  # where it failed, rank 0's own failure decides
        if self._start.kind == "never":
            raise AssertionError(self._start.text)

    # --- the second part ---------------------------------------------------------------------------

    def _do_second(self) -> None:
        __tracebackhide__ = True
        assert self._start is not None
        left: SystemExit | None = None
        with _environment(_as_changed(self._before, self._start.environment)):
            try:
                self._body(self._start)
            except SystemExit as end:
                if end.code not in (0, None):
                    raise
                left = end
            except (unittest.SkipTest, pytest.skip.Exception) as skip:
                # The others may be in the midst of the test, as may be who waits for this rank for ever.
                self._rank.announce_skip(str(skip))
                self._rank.gather(_END, "")
                raise
        # tearDown may take away what the other ranks still use. A rank that failed comes to no meeting: nobody
        # waits for it.
        ways = self._rank.gather(_END, "by sys.exit()" if left else "")
        if left is not None and (ways is None or "" in ways):
            # To leave by sys.exit(0) is a way to end such a test, if all ranks take it. One alone has proven nothing.
            raise left


# --- classes whose group serves all their tests -------------------------------------------------------

#: The classes whose group this process has opened, and what that set in the environment.
OPENED: pytest.StashKey[dict[type, dict[str, str]]] = pytest.StashKey()


def rendezvous_of_class(rank: Rank) -> str:
    """A file beside the test's folder, since the group outlives the test."""
    return f"{rank.world.folder}.rendezvous"


def open_for_class(rank: Rank, cls: Any) -> None:
    """What a process that serves all tests of a class does before its first one."""
    import torch.distributed as dist

    opened = rank.config.stash.setdefault(OPENED, {})
    if cls not in opened:
        before = dict(os.environ)
        with rank.watch.allowing():
            cls.rank, cls.world_size = rank.world.rank, rank.world.size
            cls._init_pg(rank.world.rank, rank.world.size, rendezvous_of_class(rank))
        opened[cls] = {key: value for key, value in os.environ.items() if before.get(key) != value}
        rank.groups.keep(dist.group.WORLD)
    os.environ.update(opened[cls])


# --- the environment ----------------------------------------------------------------------------------


def _changes(before: Mapping[str, str]) -> dict[str, str | None]:
    now = dict(os.environ)
    names = {name for name in {*before, *now} if before.get(name) != now.get(name)}
    return {name: now.get(name) for name in names}


def _as_changed(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """The environment at the start of the ranks, as a difference from that of now."""
    wanted = {**before, **changes}
    return {name: wanted.get(name) for name in {*wanted, *os.environ} if wanted.get(name) != os.environ.get(name)}


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Make these changes, and give back what was there, as it was."""
    was = dict(os.environ)
    _set(changes)
    try:
        yield
    finally:
        _set(_as_changed(was, {}))


def _set(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _temp_folder(folder: str) -> Iterator[None]:
    """Temporary files go to a folder that ends with the test: torch's own test cases leave theirs behind."""
    os.makedirs(folder, exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = before
