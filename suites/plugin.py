"""The kit's pytest plugin: hooks and options only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from everyrank.suites.outcomes import Outcomes

if TYPE_CHECKING:
    from everyrank.suites.case import Case


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("everyrank-suites", "everyrank: conformance")
    group.addoption("--law", metavar="ID", default=None, help="only cases of this law, or of laws like `parity.*`")
    group.addoption("--optimizer", metavar="NAME", default=None, help="only cases of this optimizer")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "conformance(subject, beside, again): one case a test; see everyrank.suites")
    if not any(isinstance(one, Outcomes) for one in config.pluginmanager.get_plugins()):
        config.pluginmanager.register(Outcomes(), "everyrank-outcomes")
    if config.getoption("law"):
        from everyrank.suites.filters import check_law

        check_law(config.getoption("law"))


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("conformance") is not None:
        from everyrank.suites.items import parametrize

        parametrize(metafunc)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """The case that a conformance test is to run, with the rank fixtures that it needs."""
    given: Case = request.param
    for name in given.fixtures:
        request.getfixturevalue(name)
    given.prepare()
    return given


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("optimizer") and not hasattr(config, "workerinput"):
        from everyrank.suites.filters import unknown

        if problem := unknown(config.getoption("optimizer")):
            raise pytest.UsageError(problem)
    if any(item.get_closest_marker("conformance") is not None for item in items):
        from everyrank.suites.preflight import Preflight, identify

        identify(items)
        config.pluginmanager.register(Preflight(items), "everyrank-preflight")
