"""Make a job of each multi-rank item: its declaration, the run's options and the machine decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from everyrank.declare import requirements
from everyrank.declare.declaration import SIZE_PARAMETER
from everyrank.declare.job import Job, Key
from everyrank.declare.run_gpus import RunGpus
from everyrank.declare.stash import DECLARATION, MISUSE
from everyrank.errors import MisuseError
from everyrank.options import Options, leaks_action


class Jobs:
    """The jobs of a run, each made when it is first asked for. An item that is misused has none."""

    def __init__(self, items: list[pytest.Item], options: Options, run_gpus: RunGpus) -> None:
        self._items = items
        self._options = options
        self._run_gpus = run_gpus
        self._indexes = {item: index for index, item in enumerate(items)}
        self._occurrences = _occurrences(items)
        self._jobs: dict[pytest.Item, Job] = {}

    def job(self, item: pytest.Item) -> Job:
        """Return the job of a multi-rank item. Raise MisuseError if it cannot be run as it is written."""
        if MISUSE in item.stash:
            raise MisuseError(item.stash[MISUSE])
        if item not in self._jobs:
            self._jobs[item] = self._make(item)
        return self._jobs[item]

    def find(self, item: pytest.Item | None) -> Job | None:
        """Return the job of an item; None if the item is not multi-rank, or misused."""
        if item is None or DECLARATION not in item.stash:
            return None
        try:
            return self.job(item)
        except MisuseError:
            return None

    def after(self, job: Job) -> Iterator[Job]:
        """Yield the jobs of the tests that come later in this run."""
        return (later for item in self._items[job.index + 1 :] if (later := self.find(item)) is not None)

    def _make(self, item: pytest.Item) -> Job:
        declared = item.stash[DECLARATION]
        size = self._size(item)
        if beyond := next((fault for fault in declared.faults if fault.rank >= size), None):
            raise MisuseError(
                f'the mark faults: "{beyond.text}" is about a rank that a world of {size} does not have'
            )
        needs, backend = requirements.needs(declared, size), self._run_gpus.backend(declared, size)
        key: Key = (
            size,
            declared.device,
            needs,
            backend if "process_group" in declared.fixtures else None,
            repr([mark.kwargs for mark in item.iter_markers("rpc")])
            if "warm_rpc_agent" in declared.fixtures
            else None,
            declared.company,
            declared.spread,
        )
        return Job(
            item,
            declared,
            size,
            needs,
            backend,
            key,
            fresh=declared.fresh or self._options.fresh,
            leaks=leaks_action(item, self._options),
            seed=self._options.seed,
            index=self._indexes.get(item, -1),
            occurrence=self._occurrences.get(item, 0),
        )

    def _size(self, item: pytest.Item) -> int:
        callspec = getattr(item, "callspec", None)
        size = callspec.params.get(SIZE_PARAMETER) if callspec is not None else None
        declared = item.stash[DECLARATION].sizes
        return int(size or (declared[0] if declared else self._options.size))


def _occurrences(items: list[pytest.Item]) -> dict[pytest.Item, int]:
    """Number the items that share a node id, which pytest allows."""
    seen: Counter[str] = Counter()
    occurrences = {}
    for item in items:
        occurrences[item] = seen[item.nodeid]
        seen[item.nodeid] += 1
    return occurrences
