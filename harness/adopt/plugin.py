"""The hooks of ``--adopt``; registered only if the option is given."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Generator
from typing import Any

import pytest
from everyrank.adopt.functions import functions, recognise_function
from everyrank.adopt.missing import Missing
from everyrank.adopt.recognise import CONTINUOUS, FUNCTION, Adopted, Finding, NotAdopted, Skipped, recognise
from everyrank.adopt.transports import are_to_sleep, asleep
from everyrank.declare.declaration import Declaration
from everyrank.declare.stash import DECLARATION, MISUSE
from everyrank.model.counts import count
from everyrank.rank.context import RANK
from everyrank.rank.seeds import accelerated
from everyrank.resources.leases import cores

FINDING: pytest.StashKey[Finding] = pytest.StashKey()


class Adopter(Missing):
    """Recognises torch's test classes after collection, and lets ranks run them."""

    def __init__(self, transports: str) -> None:
        self._counted: tuple[int, int, int] | None = None
        self._transports = transports
        self._any_is_to_sleep = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        findings = [adopt(item) for item in items]
        adopted = sum(isinstance(finding, Adopted) for finding in findings)
        not_adopted = sum(isinstance(finding, NotAdopted) and finding.uses_torch for finding in findings)
        spawning = sum(isinstance(finding, Adopted) and finding.kind == FUNCTION for finding in findings)
        self._counted = (adopted - spawning, spawning, not_adopted)
        if adopted:
            _import_early()
        sizes = {finding.size for finding in findings if isinstance(finding, Adopted)}
        self._any_is_to_sleep = any(are_to_sleep(self._transports, size) for size in sizes)

    @pytest.hookimpl
    def pytest_report_collectionfinish(self) -> str:
        adopted, spawning, not_adopted = self._counted or (0, 0, 0)
        text = f"everyrank: adopted {count(adopted, 'test')} of torch's classes"
        text += f" and {spawning} that call mp.spawn" if spawning else ""
        text += f", left {not_adopted} as they are (everyrank adopt-report lists the reasons)" if not_adopted else ""
        if self._any_is_to_sleep and "torch.distributed.rpc" in sys.modules:
            text += f"\neveryrank: agents of worlds of more than {count(cores(), 'rank')} use the RPC transport uv, "
            text += "which waits asleep (--adopt-transports=torch: torch's choice)"
        return text

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        finding = item.stash.get(FINDING, None)
        if not isinstance(finding, Adopted) or RANK not in item.config.stash:
            return (yield)
        assert isinstance(item, pytest.Function)
        rank, case, name = item.config.stash[RANK], item.instance, item.name
        if finding.kind == FUNCTION:
            with functions(rank, item):
                return (yield)
        if finding.kind == CONTINUOUS:
            from everyrank.adopt.continuous import continuous

            running = continuous(rank, case, name)
        else:
            from everyrank.adopt.spawned import spawned

            running = spawned(rank, case, name)
        sleeping = are_to_sleep(self._transports, finding.size)
        with running, asleep() if sleeping else contextlib.nullcontext():
            item.obj = getattr(case, name)
            return (yield)


def _import_early() -> None:
    """Import what every rank would otherwise import in its first test."""
    names = ["everyrank.adopt.spawned", "everyrank.adopt.continuous"]
    if not accelerated():  # the import may initialise an accelerator
        names.append("torch.testing._internal.common_device_type")
    if "torch.distributed.rpc" in sys.modules:
        names.append("torch.distributed.rpc.rref_proxy")
    for name in names:
        importlib.import_module(name)


def find(item: pytest.Item) -> Finding:
    """Decide about a test: by its class, or by what its function spawns."""
    finding = recognise(getattr(item, "cls", None), item.name)
    if isinstance(finding, NotAdopted) and not finding.uses_torch:
        return recognise_function(item) or finding
    return finding


def adopt(item: pytest.Item) -> Finding:
    """Store on an item how it is run, if it can run on everyrank's ranks."""
    finding = find(item)
    if DECLARATION in item.stash or MISUSE in item.stash:
        finding = NotAdopted("it declares its own world", uses_torch=False)
    item.stash[FINDING] = finding
    if isinstance(finding, Adopted):
        stays = finding.kind == CONTINUOUS
        cls: Any = getattr(item, "cls", None)
        item.stash[DECLARATION] = Declaration(
            sizes=(finding.size,),
            timeout=finding.timeout,
            timeout_from="" if finding.timeout is None else "torch's get_timeout()",
            fresh=not stays,
            company=f"{cls.__module__}.{cls.__qualname__}" if stays else "",
            gpus_if_any=True,
        )
    elif isinstance(finding, Skipped):
        item.add_marker(pytest.mark.skip(reason=finding.reason))
    return finding
