"""The pytest plugin: hooks and options only. Whatever costs anything is imported by the first multi-rank test."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from everyrank import hookspec, options

# A skipif that asks torch.cuda.is_available() must not initialise CUDA in what will be forked.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspec)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "world(size=None, *, device=None, gpus=0, backend=None, timeout=None, fresh=False): run the test on this "
        "many ranks, or once for each size in a list.",
    )
    config.addinivalue_line("markers", "rpc(**options): how the fixture rpc_agent starts the agents.")
    config.addinivalue_line(
        "markers",
        "rank_fixtures(*names): rank fixtures that the test asks for by request.getfixturevalue() only, so that its "
        "world is kept with what they hold.",
    )
    options.read(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if any(True for _ in metafunc.definition.iter_markers("world")):
        from everyrank.declare import parametrize

        parametrize(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    suspects = [item for item in items if _suspect(item)]
    if suspects:
        from everyrank.declare import declare

        declare(suspects)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    # First, since pytest-xdist's worker tells its controller here that it has collected.
    in_rank = session.config.pluginmanager.has_plugin("everyrank-spawned")
    if not in_rank and session.config.hook.pytest_everyrank_collected.get_hookimpls():
        from everyrank.stash import is_declared

        items = [item for item in session.items if is_declared(item)]
        if items:
            from everyrank.told import collected

            run = collected(items, options.read(session.config))
            session.config.hook.pytest_everyrank_collected(config=session.config, items=items, run=run)


def _suspect(item: pytest.Item) -> bool:
    """A cheap test that no multi-rank test fails."""
    names = getattr(item, "fixturenames", ())
    return (
        "world" in names
        or "process_group" in names
        or "rpc_agent" in names
        or "warm_rpc_agent" in names
        or "device" in names
        or getattr(getattr(item, "cls", None), "everyrank_world", False)
        or item.get_closest_marker("world") is not None
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    in_rank = session.config.pluginmanager.has_plugin("everyrank-spawned")
    if in_rank or session.config.option.collectonly or not getattr(session, "items", None):
        return (yield)
    from everyrank.stash import is_declared

    if not any(is_declared(item) for item in session.items):
        return (yield)
    if os.environ.get("EVERYRANK_NODEID"):
        raise pytest.UsageError(
            f"worlds do not nest: this pytest runs inside a rank of {os.environ['EVERYRANK_NODEID']!r}, and has "
            "multi-rank tests of its own. Start it from a single-process test."
        )
    from everyrank.controller import Controller

    controller = Controller(session, options.read(session.config))
    session.config.pluginmanager.register(controller, "everyrank-controller")
    try:
        controller.open()
        return (yield)
    finally:
        controller.close()
        session.config.pluginmanager.unregister(controller)
