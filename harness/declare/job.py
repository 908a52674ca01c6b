"""A test as it will be run: all that is decided about it before it gets a world."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from everyrank.declare.declaration import Declaration
from everyrank.model.fault import EACH, Fault, Plan
from everyrank.resources.gpus.needs import Needs

#: Tests with equal keys may share a world.
Key = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class Job:
    """A multi-rank test, its declaration, and what the run's options and the machine make of it."""

    item: pytest.Item
    declared: Declaration
    size: int
    needs: Needs
    backend: str
    key: Key
    fresh: bool
    """Whether the test needs new processes."""
    leaks: str
    """What to do about leaks: report, fail or off."""
    seed: int
    """The run's ``--world-seed``."""
    index: int
    """The position among the collected items."""
    occurrence: int
    """The position among the items with the same id, which pytest allows."""

    @property
    def nodeid(self) -> str:
        return self.item.nodeid

    @property
    def plan(self) -> Plan:
        """The faults on purpose, of one run or of a sweep."""
        return Plan(list(self.declared.faults))

    @property
    def swept(self) -> Fault | None:
        """The fault that is tried at each of its points."""
        return next((fault for fault in self.declared.faults if fault.number == EACH), None)

    @property
    def wants_group(self) -> bool:
        """Whether the test asks for the default process group."""
        return "process_group" in self.declared.fixtures

    @property
    def spends_its_world(self) -> bool:
        """Whether no other test may run in its world: an RPC agent has run there, or a fault on purpose breaks it."""
        return "rpc_agent" in self.declared.fixtures or self.plan.breaks_the_world
