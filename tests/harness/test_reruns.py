"""pytest-rerunfailures runs tests on many ranks again: ``--reruns`` and the mark ``flaky``."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from everyrank.controller.reruns import Reruns
from everyrank.errors import RankLost, WorldTimeout

from tests.inner import Inner, Project


def _of_pytest(item: Any, nextitem: Any, log: bool) -> list[Any]:
    raise AssertionError("a multi-rank test must run on a world")


def _plugin(seen: list[Any], attempts: int = 2) -> ModuleType:
    """Return a plugin that runs each test this often, by the protocol of pytest-rerunfailures."""
    plugin: Any = ModuleType("pytest_rerunfailures")
    plugin.runtestprotocol = _of_pytest

    @pytest.hookimpl(wrapper=True)
    def makereport(item: Any, call: Any) -> Any:
        report = yield
        seen.append(call.excinfo and call.excinfo.value)
        return report

    def protocol(item: Any, nextitem: Any) -> bool:
        for _ in range(attempts):
            for report in plugin.runtestprotocol(item, nextitem=nextitem, log=False):
                item.logged.append(report)
        return True

    plugin.pytest_runtest_makereport, plugin.pytest_runtest_protocol = makereport, protocol
    return plugin


def _reruns(plugin: Any, report: pytest.TestReport, warned: Any = None) -> Reruns:
    config: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin={"rerunfailures": plugin}.get),
        issue_config_time_warning=lambda warning, stacklevel: warned.append(str(warning)),
    )
    return Reruns(config, lambda item, nextitem: [report])


def _report(message: str = "", rule: str = "") -> pytest.TestReport:
    properties = [("verdict", rule)] if rule else []
    outcome: Any = "failed" if message else "passed"
    return pytest.TestReport("test_x", ("", 0, ""), {}, outcome, message, "call", user_properties=properties)


def _item() -> Any:
    return SimpleNamespace(logged=[])


def test_a_test_runs_as_often_as_the_plugin_wants() -> None:
    item, report = _item(), _report()
    assert _reruns(_plugin([], attempts=3), report).run(item, None)
    assert item.logged == [report] * 3


def test_single_process_tests_run_by_pytests_own_function_afterwards() -> None:
    plugin: Any = _plugin([])
    _reruns(plugin, _report()).run(_item(), None)
    assert plugin.runtestprotocol is _of_pytest


def test_a_run_without_the_plugin_reruns_nothing() -> None:
    assert not _reruns(None, _report()).run(_item(), None)


def test_a_version_with_another_protocol_is_named_in_a_warning() -> None:
    warned: list[str] = []
    assert not _reruns(ModuleType("pytest_rerunfailures"), _report(), warned).run(_item(), None)
    assert len(warned) == 1
    assert "this version of pytest-rerunfailures has no effect on multi-rank tests" in warned[0]


@pytest.mark.parametrize(
    ("message", "rule", "error"),
    [
        ("AssertionError: assert 1 == 2", "failed", AssertionError("assert 1 == 2")),
        ("[deadlock] ValueError: too large", "failed", ValueError("too large")),
        ("rank 1 of 2 was killed by SIGKILL in call", "lost", RankLost("rank 1 of 2 was killed by SIGKILL in call")),
        ("the world missed its deadline", "deadline", WorldTimeout("the world missed its deadline")),
        ("ranks disagree: only some skipped", "some skipped", AssertionError("ranks disagree: only some skipped")),
        ("KeyError", "failed", KeyError("")),
    ],
)
def test_the_plugins_conditions_see_the_error_of_the_ranks(message: str, rule: str, error: Exception) -> None:
    seen: list[Any] = []
    _reruns(_plugin(seen, attempts=1), _report(message, rule)).run(_item(), None)
    assert [(type(seen[0]), str(seen[0]))] == [(type(error), str(error))]


def test_an_error_of_another_module_has_its_name() -> None:
    seen: list[Any] = []
    report = _report("torch.distributed.DistBackendError: closed", "failed")
    _reruns(_plugin(seen, attempts=1), report).run(_item(), None)
    assert (type(seen[0]).__name__, str(seen[0])) == ("DistBackendError", "closed")


def test_the_plugins_hooks_see_that_a_phase_passed() -> None:
    seen: list[Any] = []
    _reruns(_plugin(seen, attempts=1), _report()).run(_item(), None)
    assert seen == [None]


ATTEMPTS = """
    import os, pytest

    def attempt(world, request):
        path = f"{request.node.name}-{world.rank}"
        with open(path, "a") as file:
            file.write(".")
        return os.path.getsize(path)

    @pytest.mark.world(2)
    def test_fails_once(world, request):
        assert attempt(world, request) > 1

    @pytest.mark.world(2)
    @pytest.mark.flaky(reruns=2)
    def test_dies_twice(world, request):
        if attempt(world, request) < 3 and world.rank == 1:
            os._exit(3)

    @pytest.mark.world(2)
    @pytest.mark.flaky(reruns=2, only_rerun=[ValueError])
    def test_fails_otherwise(world, request):
        attempt(world, request)
        assert world.size == 3
"""


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    """Return a run with the plugin itself."""
    pytest.importorskip("pytest_rerunfailures")
    module_project.write("test_inner.py", ATTEMPTS)
    return module_project.run("--reruns=1", "--fresh-worlds", "--run-file=run.jsonl")


def _attempts(inner: Inner, test: str) -> list[int]:
    return [(inner.folder / f"{test}-{rank}").stat().st_size for rank in range(2)]


def test_the_option_runs_a_test_again(inner: Inner) -> None:
    assert _attempts(inner, "test_fails_once") == [2, 2]


def test_the_mark_runs_a_test_again_that_lost_a_rank(inner: Inner) -> None:
    assert _attempts(inner, "test_dies_twice") == [3, 3]


def test_a_condition_of_the_mark_counts(inner: Inner) -> None:
    assert _attempts(inner, "test_fails_otherwise") == [1, 1]


def test_reruns_are_no_failures(inner: Inner) -> None:
    assert "1 failed, 2 passed, 3 rerun" in inner.out


def test_the_run_file_has_the_last_attempt(inner: Inner) -> None:
    assert (inner.folder / "run.jsonl").read_text().count('"line":"case"') == 3
