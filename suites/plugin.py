"""The kit's pytest plugin: hooks and options only."""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from everyrank.suites import options as generation
from everyrank.suites.collect import profile
from everyrank.suites.collect.crossed import Crossed
from everyrank.suites.collect.outcomes import Outcomes
from everyrank.suites.collect.stash import LEFT_OUT, SELECTIONS, WORKER_OUTPUT, WORKER_PROBLEM

if TYPE_CHECKING:
    from everyrank.suites.engine.case import Case


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("everyrank-suites", "everyrank: conformance")
    group.addoption("--law", metavar="ID", default=None, help="only cases of this law, or of laws like `parity.*`")
    group.addoption(
        "--optimizer", metavar="NAME", default=None, help="only cases of this optimizer, or of optimizers like `Ada*`"
    )
    profile.add(group)
    generation.add(group)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "conformance(subjects, folder, again): run the test once for each case of each subject; see everyrank.suites",
    )
    if not config.pluginmanager.has_plugin("warnings"):  # under -p no:warnings the marks of cases still name it
        config.addinivalue_line("markers", "filterwarnings(filter): without pytest's own plugin it does nothing.")
    if not any(isinstance(plugin, Outcomes) for plugin in config.pluginmanager.get_plugins()):
        config.pluginmanager.register(Outcomes(), "everyrank-outcomes")
        config.pluginmanager.register(Crossed(), "everyrank-crossed")
    generation.configure(config)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("conformance") is not None:
        from everyrank.suites.collect.items import parametrize

        gc.freeze()
        parametrize(metafunc)
        gc.freeze()  # see pytest_collection_modifyitems


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """Return the case that a conformance test is to run, after setting up the rank fixtures that it needs."""
    case: Case = request.param
    for name in case.fixtures:
        request.getfixturevalue(name)
    case.prepare()
    return case


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and item.get_closest_marker("conformance") is not None:
        from everyrank.suites.collect import failure_report

        if report.failed and not failure_report.wants_traceback(item.config):
            report.longrepr = failure_report.report(item, call.excinfo.value) or report.longrepr
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    filtered = config.getoption("law") is not None or config.getoption("optimizer") is not None
    if filtered or SELECTIONS in config.stash:
        from everyrank.suites.collect.filters import settle

        problem = settle(config, items)
        # The cases may be in a file that failed to import; and a spawned rank imports only one file of the run.
        whole = not session.testsfailed and not config.pluginmanager.has_plugin("everyrank-spawned")
        if problem and whole:
            _refuse(config, problem)
    yield  # -k and other plugins select
    if any(item.get_closest_marker("conformance") is not None for item in items):
        from everyrank.suites.collect.order import pair
        from everyrank.suites.collect.usability import Usability, identify

        pair(items)
        # Cases are many objects that live as long as the run: no garbage collection need look at them again.
        gc.freeze()
        identify(items)
        config.pluginmanager.register(Usability(items), "everyrank-usability")


def _refuse(config: pytest.Config, problem: str) -> NoReturn:
    """End the run with a usage error; a worker of pytest-xdist leaves that to its controller."""
    output = getattr(config, "workeroutput", None)
    if output is None:
        raise pytest.UsageError(problem)
    output[WORKER_PROBLEM] = problem
    pytest.exit(problem, returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_everyrank_collected(config: pytest.Config, run: dict[str, Any]) -> None:
    left_out = config.stash.get(LEFT_OUT, None)
    if left_out is not None:
        run["left_out"] = left_out.as_data()["counts"]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    left_out = config.stash.get(LEFT_OUT, None)
    lines = left_out.lines() if left_out is not None and config.getoption("verbose") >= 0 else []
    return [f"filtered: {line}" for line in lines]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    left_out, output = session.config.stash.get(LEFT_OUT, None), getattr(session.config, "workeroutput", None)
    if left_out is not None and output is not None:
        output[WORKER_OUTPUT] = left_out.as_data()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist reports about the filters."""
    output = getattr(node, "workeroutput", {})
    if WORKER_OUTPUT in output:
        from everyrank.suites.collect.left_out import LeftOut

        node.config.stash[LEFT_OUT] = LeftOut.from_data(output[WORKER_OUTPUT])
    if WORKER_PROBLEM in output:
        raise pytest.UsageError(output[WORKER_PROBLEM])
