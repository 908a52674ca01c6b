"""Tests that share a warm world: which test is at fault, how wider fixtures live, and what a test draws."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.inner import Inner, Project

SOURCE = {
    "conftest.py": """
        import json, os, random
        import pytest

        FOLDER = os.environ["PYTHONPATH"]

        @pytest.fixture(autouse=True)
        def record_facts(request):
            if "world" not in request.fixturenames and "process_group" not in request.fixturenames:
                yield
                return
            import torch
            world = request.getfixturevalue("world")
            drawn = [random.random(), torch.rand(1).item()]
            yield
            line = {"test": request.node.name, "rank": world.rank, "pid": os.getpid(), "seed": world.seed,
                    "drawn": drawn}
            with open(os.path.join(FOLDER, "seen.jsonl"), "a") as file:
                file.write(json.dumps(line) + "\\n")
        """,
    "test_neighbours.py": """
        import random
        import torch, torch.distributed as dist

        seen = []

        def test_first(process_group):
            dist.barrier()

        def test_leaves_something_in_a_list(process_group):
            seen.append(1)
            torch.rand(7), random.random()

        def test_wants_the_list_empty(process_group):
            assert seen == []

        def test_green_between(process_group):
            dist.barrier()

        def test_fails_by_itself(process_group, world):
            assert world.rank != 1

        def test_last(process_group):
            assert seen == []
        """,
    "test_fixtures.py": """
        import os
        import pytest, torch.distributed as dist

        def note(text):
            with open(os.path.join(os.environ["PYTHONPATH"], "fixtures.txt"), "a") as file:
                file.write(text + "\\n")

        @pytest.fixture(scope="module")
        def by_module():
            note(f"module up in {os.getpid()}")
            yield os.getpid()
            note(f"module down in {os.getpid()}")

        @pytest.fixture(scope="session")
        def by_session():
            note(f"session up in {os.getpid()}")
            yield os.getpid()
            note(f"session down in {os.getpid()}")

        @pytest.mark.parametrize("number", range(3))
        def test_shares(world, by_module, by_session, number):
            assert by_module == by_session == os.getpid()
            world.barrier()
        """,
    "test_killed_idle.py": """
        import os, pathlib, signal
        import pytest, torch.distributed as dist

        NOTED = pathlib.Path(os.environ["PYTHONPATH"], "killed")

        @pytest.mark.world(3)
        def test_notes_a_rank(process_group, world):
            if world.rank == 1:
                NOTED.write_text(str(os.getpid()))

        def test_kills_the_idle_rank():
            os.kill(int(NOTED.read_text()), signal.SIGKILL)

        @pytest.mark.world(3)
        def test_does_not_notice(process_group):
            dist.barrier()
        """,
    "test_killed_before_it_begins.py": """
        import os, pathlib, signal
        import pytest

        FOLDER = pathlib.Path(os.environ["PYTHONPATH"])

        @pytest.mark.world(2)
        def test_notes_rank_0(world):
            if world.rank == 0:
                FOLDER.joinpath("rank 0").write_text(str(os.getpid()))

        def test_stops_rank_0():
            os.kill(int(FOLDER.joinpath("rank 0").read_text()), signal.SIGSTOP)

        @pytest.mark.world(2)
        def test_kills_rank_0(world):
            os.kill(int(FOLDER.joinpath("rank 0").read_text()), signal.SIGKILL)
        """,
    "test_late.py": """
        import pytest

        @pytest.fixture(scope="module")
        def bad_end(request):
            yield
            raise RuntimeError("a module's fixture failed to end")

        @pytest.mark.world(2)
        def test_uses_it(world, bad_end):
            pass
        """,
    "test_skips_its_last.py": """
        import os
        import pytest

        pytestmark = pytest.mark.world(2)

        @pytest.fixture(scope="module")
        def lives_long():
            yield
            with open(os.path.join(os.environ["PYTHONPATH"], "fixtures.txt"), "a") as file:
                file.write("ended" + os.linesep)
            assert "fails to end" not in os.environ.get("ASKED", "")

        def test_uses_it(lives_long):
            pass

        @pytest.mark.skip(reason="the controller knows")
        def test_left_out(lives_long):
            pass
        """,
    "test_comes_next.py": """
        import os
        import pytest

        @pytest.mark.world(2)
        def test_finds_it_ended(world):
            world.barrier()
            with open(os.path.join(os.environ["PYTHONPATH"], "fixtures.txt")) as file:
                assert file.read().split() == ["ended", "ended"]
        """,
}


@pytest.fixture(scope="module")
def project(module_project: Project) -> Project:
    for name, text in SOURCE.items():
        module_project.write(name, text)
    return module_project


def _seen(project: Project) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (project.folder / "seen.jsonl").read_text().splitlines()]


class Ran:
    """An inner run, and the facts that its ranks noted."""

    def __init__(self, project: Project, *arguments: str) -> None:
        for name in ("seen.jsonl", "fixtures.txt"):
            (project.folder / name).write_text("")
        self.inner: Inner = project.run(*arguments)
        self.seen = _seen(project)
        self.fixtures = (project.folder / "fixtures.txt").read_text().splitlines()

    def noted(self, test: str, key: str) -> list[Any]:
        """Return what each rank noted in a test's first run."""
        found: dict[int, Any] = {}
        for line in self.seen:
            if line["test"] == test:
                found.setdefault(line["rank"], line[key])
        return [found[rank] for rank in sorted(found)]


@pytest.fixture(scope="module")
def whole(project: Project) -> Ran:
    return Ran(project, "test_neighbours.py", "test_fixtures.py", "test_killed_idle.py")


@pytest.fixture(scope="module")
def single(project: Project) -> Ran:
    return Ran(project, "test_neighbours.py", "-k", "green_between or last")


@pytest.fixture(scope="module")
def fresh(project: Project) -> Ran:
    return Ran(project, "--fresh-worlds", "test_neighbours.py", "test_fixtures.py")


def test_a_test_that_fails_only_because_of_its_neighbours_passes_alone(whole: Ran) -> None:
    result = whole.inner["test_wants_the_list_empty"]
    assert result.outcome == "failed"
    assert "This test passes alone: run again in a fresh world, it passed." in result.text
    assert "- (passes alone) " in whole.inner.out


def test_the_neighbours_are_named(whole: Ran) -> None:
    text = whole.inner["test_wants_the_list_empty"].text
    assert "test_neighbours.py::test_first, test_neighbours.py::test_leaves_something_in_a_list" in text


def test_the_failure_is_the_one_from_the_warm_world(whole: Ran) -> None:
    assert "assert [1] == []" in whole.inner["test_wants_the_list_empty"].text


def test_a_test_that_fails_alone_does_not_pass_alone(whole: Ran) -> None:
    result = whole.inner["test_fails_by_itself"]
    assert result.outcome == "failed"
    assert "passes alone" not in result.text
    assert len(set(whole.noted("test_fails_by_itself", "pid"))) == 2


def test_after_a_failure_the_neighbours_leavings_are_gone(whole: Ran) -> None:
    assert whole.inner["test_last"].outcome == "passed"


def test_with_fresh_worlds_nothing_is_shared(fresh: Ran) -> None:
    assert fresh.inner["test_wants_the_list_empty"].outcome == "passed"
    by_test = [set(fresh.noted(test, "pid")) for test in ("test_first", "test_green_between", "test_last")]
    assert len(set.union(*by_test)) == 6


def test_seeds_and_drawn_numbers_do_not_depend_on_neighbours(whole: Ran, single: Ran) -> None:
    assert single.inner.code == 0
    for test in ("test_green_between", "test_last"):
        assert whole.noted(test, "seed") == single.noted(test, "seed")
        assert whole.noted(test, "drawn") == single.noted(test, "drawn")


def test_ranks_and_tests_have_seeds_of_their_own(whole: Ran) -> None:
    seeds = [*whole.noted("test_first", "seed"), *whole.noted("test_last", "seed")]
    assert len(set(seeds)) == 4


def test_wider_fixtures_are_set_up_once_and_torn_down_once_on_each_rank(whole: Ran) -> None:
    pids = {str(pid) for pid in whole.noted("test_shares[0]", "pid")}
    assert pids == {str(pid) for pid in whole.noted("test_shares[2]", "pid")}
    for scope in ("module", "session"):
        for direction in ("up", "down"):
            begin = f"{scope} {direction} in "
            assert sorted(line for line in whole.fixtures if line.startswith(begin)) == sorted(
                begin + pid for pid in pids
            )


def test_wider_fixtures_of_fresh_worlds_end_with_each_world(fresh: Ran) -> None:
    assert len([line for line in fresh.fixtures if line.startswith("module up")]) == 6
    assert len([line for line in fresh.fixtures if line.startswith("module down")]) == 6


def test_a_rank_killed_between_two_tests_hurts_neither(whole: Ran) -> None:
    for test in ("test_notes_a_rank", "test_kills_the_idle_rank", "test_does_not_notice"):
        assert whole.inner[test].outcome == "passed", whole.inner[test].text

    # The survivors had begun the test: only the run that was judged counts.
    judged = [line["pid"] for line in whole.seen if line["test"] == "test_does_not_notice"][-3:]
    assert len({*whole.noted("test_notes_a_rank", "pid"), *judged}) == 6


def test_a_test_that_kills_a_rank_which_has_not_begun_is_not_run_in_another_world(project: Project) -> None:
    inner = project.run("test_killed_before_it_begins.py")
    assert "rank 0 of 2 was killed by SIGKILL" in inner["test_kills_rank_0"].text


@pytest.mark.parametrize("arguments", [(), ("--fresh-worlds",)], ids=["warm", "fresh"])
def test_a_wider_fixture_that_fails_to_end_is_reported(project: Project, arguments: tuple[str, ...]) -> None:
    inner = project.run("test_late.py", *arguments)
    assert inner.code == pytest.ExitCode.TESTS_FAILED
    assert "a module's fixture failed to end" in inner.out


def test_what_a_skipped_test_would_have_shared_ends_before_the_next_test(project: Project) -> None:
    ran = Ran(project, "test_skips_its_last.py", "test_comes_next.py")
    outcomes = {test: ran.inner[test].outcome for test in ("test_uses_it", "test_left_out", "test_finds_it_ended")}
    assert outcomes == {"test_uses_it": "passed", "test_left_out": "skipped", "test_finds_it_ended": "passed"}


def test_a_wider_fixture_that_fails_to_end_after_a_skip_is_reported(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASKED", "fails to end")
    text = Ran(project, "test_skips_its_last.py", "test_comes_next.py").inner["test_finds_it_ended"].text
    assert "it came after test_skips_its_last.py::test_uses_it" in text
    assert 'assert "fails to end" not in' in text
