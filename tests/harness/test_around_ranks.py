"""Multi-rank tests within a run: selection, stopping, reports, xdist, timeouts, other tests."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from tests.audit import AUDIT, lines
from tests.forked import ForkServers
from tests.inner import Inner, Project

MIXED = """
    import os
    import pytest

    HERE = os.path.dirname(__file__)

    def note(text):
        with open(os.path.join(HERE, "noted"), "a") as file:
            file.write(f"{text}\\n")

    @pytest.fixture(scope="module")
    def here():
        note("up")
        yield
        note("down")

    def test_single_before(here):
        note("before")

    @pytest.mark.world(2)
    def test_passes(world):
        print("out of", world.rank)
        if world.rank == 0:
            note("ranks")

    def test_single_after(here):
        note("after")

    @pytest.mark.world(2)
    def test_fails(world):
        assert world.size == 3

    @pytest.mark.world(2)
    def test_fails_too(world):
        assert world.rank == 0

    @pytest.mark.world(2)
    def test_last(world):
        pass
"""


def mixed(project: Project) -> Project:
    project.write("test_mixed.py", MIXED)
    project.write("conftest.py", AUDIT)
    return project


class TestPlainRun:
    """One run of a file in which single-process and multi-rank tests take turns."""

    @pytest.fixture(scope="module")
    @staticmethod
    def ran(tmp_path_factory: pytest.TempPathFactory, fork_servers: ForkServers) -> tuple[Project, Inner]:
        project = mixed(Project(tmp_path_factory.mktemp("mixed"), fork_servers))
        return project, project.run("--junitxml=junit.xml", "--durations=0", "-vv")

    def test_outcomes(self, ran: tuple[Project, Inner]) -> None:
        assert ran[1].outcomes() == {
            "test_single_before": "passed",
            "test_passes": "passed",
            "test_single_after": "passed",
            "test_fails": "failed",
            "test_fails_too": "failed",
            "test_last": "passed",
        }

    def test_a_module_fixture_of_the_controller_stays_up_around_ranks(self, ran: tuple[Project, Inner]) -> None:
        assert lines(ran[0], "noted") == ["up", "before", "ranks", "after", "down"]

    def test_junit_has_one_case_a_test(self, ran: tuple[Project, Inner]) -> None:
        cases = self.cases(ran[1])
        assert sorted(cases) == sorted(ran[1].outcomes())

    def test_junit_has_the_failure_text(self, ran: tuple[Project, Inner]) -> None:
        failure = self.cases(ran[1])["test_fails_too"].find("failure")
        assert failure is not None
        assert "assert 1 == 0" in failure.attrib["message"]
        assert "rank 1 of 2 failed first, in call" in str(failure.text)
        assert "assert world.rank == 0" in str(failure.text)

    def test_junit_has_the_time_of_the_ranks(self, ran: tuple[Project, Inner]) -> None:
        assert float(self.cases(ran[1])["test_passes"].attrib["time"]) > 0

    def cases(self, inner: Inner) -> dict[str, ElementTree.Element]:
        found = list(ElementTree.parse(inner.folder / "junit.xml").iter("testcase"))
        assert len(found) == len({case.attrib["name"] for case in found})
        return {case.attrib["name"]: case for case in found}

    @pytest.mark.parametrize("when", ["setup", "call", "teardown"])
    def test_durations_name_each_phase(self, ran: tuple[Project, Inner], when: str) -> None:
        assert any(
            line.split()[1:] == [when, "test_mixed.py::test_passes"]
            for line in ran[1].out.splitlines()
            if "s " in line
        )

    def test_each_test_is_shown_once(self, ran: tuple[Project, Inner]) -> None:
        assert ran[1].out.count("test_mixed.py::test_passes PASSED") == 1
        assert "2 failed, 4 passed" in ran[1].out

    def test_processes_are_started(self, ran: tuple[Project, Inner]) -> None:
        """The audit works that the tests of runs without processes rely on."""
        assert {"controller", "zygote"} <= set(lines(ran[0], "started"))


def test_maxfail_counts_a_test_once_and_last_failed_runs_those_that_failed_on_any_rank(project: Project) -> None:
    inner = mixed(project).run("--maxfail=2", "-p", "cacheprovider")
    assert list(inner.outcomes())[-1] == "test_fails_too"
    assert set(project.run("-p", "cacheprovider", "--lf").outcomes()) == {"test_fails", "test_fails_too"}


def test_collecting_only_starts_no_process(project: Project) -> None:
    inner = mixed(project).run("--collect-only", "-q")
    assert "test_mixed.py::test_passes" in inner.out
    assert lines(project, "started") == []


def test_single_process_tests_start_no_process(project: Project) -> None:
    assert mixed(project).run("-k", "single").code == 0
    assert lines(project, "started") == []


def test_single_process_tests_import_neither_torch_nor_msgspec(project: Project) -> None:
    project.write(
        "test_plain.py",
        """
        import sys
        def test_nothing_heavy():
            heavy = {"torch", "msgspec", "everyrank.controller.controller", "everyrank.rank.rank"}
            assert heavy.isdisjoint(sys.modules)
        """,
    )
    inner = project.run()
    assert inner["test_nothing_heavy"].outcome == "passed", inner.out


def test_live_output_bears_its_rank_on_each_line(project: Project) -> None:
    project.write(
        "test_live.py",
        """
        import os, sys
        import pytest

        @pytest.mark.world(2)
        def test_speaks(world):
            print("first\\nsecond")
            print("to stderr", file=sys.stderr)
            os.write(1, b"raw\\n")
            print("no end of line", end="")

        @pytest.mark.world(2)
        def test_dies(world):
            if world.rank == 1:
                os.write(1, b"last words")
                os._exit(1)
            world.barrier()
        """,
    )
    inner = project.run("-s")
    assert inner["test_speaks"].outcome == "passed"
    for rank in (0, 1):
        for text in ("first", "second", "to stderr", "raw", "no end of line"):
            assert inner.out.count(f"[rank {rank}] {text}\n") == 1, inner.out
    assert "[rank 1] last words\n" in inner.out
    assert "first" not in inner.out.replace("[rank 0] first", "").replace("[rank 1] first", "")


@pytest.mark.parametrize("options", [["-n2", "--dist=loadgroup"], ["-n1", "--dist=loadscope"]])
def test_xdist_runs_worlds_in_its_workers(project: Project, options: list[str]) -> None:
    project.write(
        "test_spread.py",
        """
        import os, pytest, torch, torch.distributed as dist

        @pytest.mark.xdist_group("one")
        @pytest.mark.world(2)
        @pytest.mark.parametrize("number", range(4))
        def test_grouped(process_group, world, number, record_property):
            t = torch.ones(1)
            dist.all_reduce(t)
            assert t.item() == 2
            if world.rank == 0:
                record_property("worker", os.environ["PYTEST_XDIST_WORKER"])

        @pytest.mark.world([1, 3])
        def test_sizes(process_group, world):
            dist.barrier()

        def test_single():
            pass

        @pytest.mark.world(2)
        def test_fails(world):
            assert world.rank == 0
        """,
    )
    inner = project.run(*options)
    outcomes = {name.split("@")[0]: outcome for name, outcome in inner.outcomes().items()}
    assert outcomes == {
        **{f"test_grouped[{number}]": "passed" for number in range(4)},
        "test_sizes[ws1]": "passed",
        "test_sizes[ws3]": "passed",
        "test_single": "passed",
        "test_fails": "failed",
    }
    assert "rank 1 of 2 failed first, in call" in inner.out
    # xdist decides whether a group stays on one worker (pytest-xdist#1386: it does not with pytest 9.2).
    workers = {result.properties["worker"] for name, result in inner.tests.items() if "grouped" in name}
    assert workers <= {"gw0", "gw1"}


class TestTimeouts:
    """pytest-timeout governs a world as it governs any test."""

    @pytest.fixture(scope="module")
    @staticmethod
    def inner(tmp_path_factory: pytest.TempPathFactory, fork_servers: ForkServers) -> Inner:
        project = Project(tmp_path_factory.mktemp("timeouts"), fork_servers)
        project.write(
            "test_late.py",
            """
            import time
            import pytest

            def hang(world):
                if world.rank == 1:
                    time.sleep(600)

            @pytest.fixture
            def slow():
                time.sleep(3.5)

            @pytest.mark.timeout(2)
            @pytest.mark.world(2)
            def test_by_mark(world):
                hang(world)

            @pytest.mark.world(2)
            def test_by_option(world):
                hang(world)

            @pytest.mark.timeout(60)
            @pytest.mark.world(2, timeout=1.5)
            def test_own_mark_wins(world):
                hang(world)

            @pytest.mark.timeout(3, func_only=True)
            @pytest.mark.world(2)
            def test_slow_setup_does_not_count(world, slow):
                pass

            @pytest.mark.timeout(1.25, func_only=True)
            @pytest.mark.world(2)
            def test_hangs_in_the_call(world):
                hang(world)

            @pytest.mark.world(2)
            def test_next(world):
                world.barrier()

            def test_single():
                pass
            """,
        )
        return project.run("--timeout=2.5")

    @pytest.mark.parametrize(
        ("name", "seconds", "source"),
        [
            ("test_by_mark", "2", "pytest-timeout"),
            ("test_by_option", "2.5", "pytest-timeout"),
            ("test_own_mark_wins", "1.5", "the mark world"),
            ("test_hangs_in_the_call", "1.25", "pytest-timeout"),
        ],
    )
    def test_the_nearest_deadline_ends_the_world(self, inner: Inner, name: str, seconds: str, source: str) -> None:
        result = inner[name]
        assert result.outcome == "failed"
        assert f"missed its deadline of {seconds} s ({source}): rank 1 had not finished" in result.text

    @pytest.mark.parametrize("name", ["test_slow_setup_does_not_count", "test_next", "test_single"])
    def test_others_pass(self, inner: Inner, name: str) -> None:
        assert inner[name].outcome == "passed", inner[name].text
