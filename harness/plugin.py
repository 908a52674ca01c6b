"""The pytest plugin: hooks and options. Modules that are slow to import wait for the first multi-rank test."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
from everyrank import hookspec, options
from everyrank.errors import MisuseError
from everyrank.launch import launchers

if TYPE_CHECKING:
    from everyrank.launch.protocol import Member

# A skipif that calls torch.cuda.is_available() must not initialise CUDA in a process that will be forked.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

#: The membership of a process that keeps ranks for another one.
_MEMBER: pytest.StashKey[Member] = pytest.StashKey()

#: The names by which the other folders' plugins are installed.
_SIBLINGS = ("everyrank-fixtures", "everyrank-suites", "everyrank-reports")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    options.add(parser)
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):  # then `-p everyrank` is all that a user should have to type
        for name in _SIBLINGS:
            pluginmanager.import_plugin(name, consider_entry_points=True)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspec)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "world(size=None, *, device=None, gpus=None, gpu_memory=0, capability=None, p2p=False, spread=False, "
        "backend=None, timeout=None, fresh=False): run the test on this many ranks, or once for each size in a list.",
    )
    config.addinivalue_line(
        "markers", "leaks(action): what to do about leaks of this test: report, fail or off; overrides --leaks."
    )
    config.addinivalue_line("markers", "rpc(**options): how the fixture rpc_agent starts the agents.")
    config.addinivalue_line(
        "markers",
        "rank_fixtures(*names): rank fixtures that the test asks for only by request.getfixturevalue(); its world is "
        "started and kept as if its signature named them.",
    )
    config.addinivalue_line(
        "markers", "mutate(floor): under --mutate, the test must notice this part of the changes of its collectives."
    )
    config.addinivalue_line(
        "markers",
        'faults(*texts): let ranks of this test fail on purpose: "rank 1 dies at its 3rd collective"; with "each '
        'collective", the test runs once for each.',
    )
    chosen = options.read(config)
    try:
        member = launchers.configure(chosen.launcher, config)
    except MisuseError as error:
        raise pytest.UsageError(f"everyrank: {error}") from None
    if member is not None:
        config.stash[_MEMBER] = member
    if chosen.mutate is not None and not hasattr(config, "workerinput"):
        from everyrank.mutants.summary import Summary

        config.pluginmanager.register(Summary(chosen.mutate.budget), "everyrank-mutants")
    if chosen.adopt:
        from everyrank.adopt.plugin import Adopter

        config.pluginmanager.register(Adopter(chosen.adopt_transports), "everyrank-adopter")
        if sys.platform == "linux":
            from everyrank.scripts.plugin import ScriptAdopter

            config.pluginmanager.register(ScriptAdopter(config), "everyrank-script-adopter")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if any(True for _ in metafunc.definition.iter_markers("world")):
        from everyrank.declare.items import parametrize

        parametrize(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    candidates = [item for item in items if _may_be_multi_rank(item)]
    if candidates:
        from everyrank.declare.items import declare

        declare(candidates)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    # This must run first: in this hook, pytest-xdist's worker reports to its controller that it has collected.
    in_rank = session.config.pluginmanager.has_plugin("everyrank-spawned")
    if not in_rank and session.config.hook.pytest_everyrank_collected.get_hookimpls():
        from everyrank.declare.stash import is_declared

        items = [item for item in session.items if is_declared(item)]
        if items:
            from everyrank.verdict.result import collected_run

            run = collected_run(items, options.read(session.config))
            session.config.hook.pytest_everyrank_collected(config=session.config, items=items, run=run)


def _may_be_multi_rank(item: pytest.Item) -> bool:
    """Return False only for items that are certainly not multi-rank; this runs for every item, so it is cheap."""
    names = getattr(item, "fixturenames", ())
    return (
        "world" in names
        or "process_group" in names
        or "rpc_agent" in names
        or "warm_rpc_agent" in names
        or "device" in names
        or getattr(getattr(item, "cls", None), "everyrank_world", False)
        or item.get_closest_marker("world") is not None
        or item.get_closest_marker("faults") is not None
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    # This runs in pytest-xdist's controller. A worker that it starts itself may end with it. A worker on another
    # host, or behind another gateway, is not a child of this process.
    if node.gateway.spec.popen and not node.gateway.spec.via:
        node.workerinput["everyrank_parent"] = os.getpid()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # A worker of pytest-xdist knows how many GPUs the launcher's hosts have, and its controller judges the run.
    found = getattr(node, "workeroutput", {}).get("everyrank_gpus")
    if found is not None:
        from everyrank.declare.stash import FOUND_GPUS

        node.config.stash[FOUND_GPUS] = found


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    # This wrapper is the innermost: worlds end and hand over their coverage before pytest-cov adds it up.
    if session.config.option.collectonly or session.config.getoption("setupplan", False):
        return (yield)  # no fixture is set up, and no test is called
    if (member := session.config.stash.get(_MEMBER, None)) is not None and not session.testsfailed:
        from everyrank.controller.launch_context import launch_context

        code = member.serve(launch_context(session))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # it has nothing to report
    in_rank = session.config.pluginmanager.has_plugin("everyrank-spawned")
    if in_rank or not getattr(session, "items", None):
        return (yield)
    from everyrank.declare.stash import is_declared

    any_multi_rank = any(is_declared(item) for item in session.items)
    if session.config.getoption("mutate") and not any_multi_rank and not hasattr(session.config, "workerinput"):
        raise pytest.UsageError(
            "--mutate changes collectives of multi-rank tests, and none was collected: such a test has the mark "
            "world or asks for a fixture such as process_group"
        )
    if not any_multi_rank and not launchers.has_members(options.read(session.config).launcher):
        return (yield)
    if os.environ.get("EVERYRANK_NODEID"):
        raise pytest.UsageError(
            f"worlds do not nest: this pytest runs inside a rank of {os.environ['EVERYRANK_NODEID']!r}, and has "
            "multi-rank tests itself. Start it from a single-process test."
        )
    from everyrank.controller.controller import Controller

    controller = Controller(session, options.read(session.config))
    session.config.pluginmanager.register(controller, "everyrank-controller")
    try:
        controller.open()
        return (yield)
    finally:
        controller.close()
        session.config.pluginmanager.unregister(controller)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    required = session.config.getoption("require_gpus")
    if required and not session.config.option.collectonly and session.exitstatus in (0, 5):
        from everyrank.declare.run_gpus import shortage

        if shortage(session.config, required):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    yield  # these lines come last, where they are seen
    required = 0 if config.option.collectonly else config.getoption("require_gpus")
    if required or terminalreporter.stats.get("skipped"):
        from everyrank.declare.run_gpus import write_summary

        write_summary(terminalreporter, required)
