"""The core of what works in forked ranks works in clean interpreters, with the same messages."""

from __future__ import annotations

import json

import pytest

from tests.forked import ForkServers
from tests.inner import Inner, Project

pytestmark = pytest.mark.group("clusters")

INI = """
    [pytest]
    filterwarnings = error
"""

CONFTEST = """
    import json, os
    import pytest

    @pytest.fixture
    def from_conftest():
        return lambda: "a lambda of the conftest"

    @pytest.fixture
    def note(world, request):
        def note(**facts):
            with open(os.path.join(os.path.dirname(__file__), "noted.jsonl"), "a") as file:
                file.write(json.dumps({"rank": world.rank, "test": request.node.name, **facts}) + "\\n")
        return note
"""

MIXED = """
    import os, random, threading, unittest
    import pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world(2)

    def make_local():
        class Local:
            value = 3
        return Local

    def test_group(process_group):
        t = torch.ones(1)
        dist.all_reduce(t)
        assert t.item() == 2

    @pytest.mark.parametrize("what", [lambda: 3, make_local])
    def test_parameters(what, from_conftest):
        assert callable(what) and from_conftest() == "a lambda of the conftest"

    @pytest.fixture(scope="module")
    def module(from_session):
        made = []
        yield made
        assert made == [1, 2]

    @pytest.fixture(scope="session")
    def from_session():
        return os.getpid()

    def test_module_fixture(module):
        module.append(1)

    def test_module_fixture_again(module, from_session):
        module.append(2)
        assert module == [1, 2]
        assert from_session == os.getpid()

    def test_builtin_fixtures(world, tmp_path, monkeypatch, capsys, caplog):
        (tmp_path / str(world.rank)).touch()
        monkeypatch.setenv("SOME", "thing")
        print(world.rank)
        assert capsys.readouterr().out == f"{world.rank}\\n"
        world.barrier()
        assert os.listdir(tmp_path) == [str(world.rank)]

    def test_folder(world):
        world.barrier()
        assert os.listdir(world.folder) == []

    class TestUnittest(unittest.TestCase):
        def setUp(self):
            self.up = True

        def test_method(self):
            self.assertTrue(self.up)

    def test_seeds(world, note):
        note(seed=world.seed, torch=torch.rand(1).item(), random=random.random())

    def test_output(world):
        print("on every rank")

    def test_one_fails(world):
        numbers = {"rank": world.rank}
        assert numbers == {"rank": 0}
        world.barrier()

    def test_all_fail(world):
        assert world.size == 3

    def test_disagree(world):
        world.all_agree(torch.tensor(world.rank))

    def test_skip(world):
        pytest.skip("not here")

    @pytest.fixture
    def broken():
        raise LookupError("no such thing")

    def test_error(broken):
        pass

    def test_leaves(world):
        if world.rank:
            os._exit(3)
        world.barrier()

    @pytest.mark.filterwarnings("default")
    def test_warning(world):
        import warnings
        warnings.warn("warned by every rank")

    @pytest.mark.world(2, timeout=5)
    def test_late(world):
        if world.rank:
            threading.Event().wait()
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, fork_servers: ForkServers) -> tuple[Inner, Inner]:
    """Run one file under both launchers."""
    ran = []
    for launcher in ("fork", "spawn"):
        project = Project(tmp_path_factory.mktemp(launcher), fork_servers)
        project.forks_keeper = launcher == "spawn"
        project.write("pytest.ini", INI)
        project.write("conftest.py", CONFTEST)
        project.write("test_inner.py", MIXED)
        ran.append(project.run(f"--launcher={launcher}"))
    return ran[0], ran[1]


def test_outcomes(both: tuple[Inner, Inner]) -> None:
    forked, spawned = both
    assert forked.outcomes() == spawned.outcomes()
    assert {name: outcome for name, outcome in spawned.outcomes().items() if outcome != "passed"} == {
        "test_one_fails": "failed",
        "test_all_fail": "failed",
        "test_disagree": "failed",
        "test_skip": "skipped",
        "test_error": "error",
        "test_leaves": "failed",
        "test_late": "failed",
    }


@pytest.mark.parametrize(
    "name", ["test_one_fails", "test_all_fail", "test_disagree", "test_skip", "test_error", "test_leaves"]
)
def test_texts(both: tuple[Inner, Inner], name: str) -> None:
    forked, spawned = (inner[name].text.replace(str(inner.folder), "") for inner in both)
    assert forked == spawned.replace("--launcher=spawn", "--launcher=fork")  # in the line to repeat


def test_output_is_shown_with_its_ranks(both: tuple[Inner, Inner]) -> None:
    for inner in both:
        assert inner["test_output"].sections == {"Captured stdout call, all 2 ranks": "on every rank\n"}


def test_a_warning_of_all_ranks_is_reported_once(both: tuple[Inner, Inner]) -> None:
    for inner in both:
        assert [(warning["warning"], warning["text"]) for warning in inner.warnings] == [
            ("UserWarning", "warned by every rank")
        ]


def test_a_missed_deadline_is_reported(both: tuple[Inner, Inner]) -> None:
    for inner in both:
        assert "missed its deadline of 5 s (the mark world): rank 1 had not finished" in inner["test_late"].text


@pytest.mark.parametrize("generator", ["seed", "torch", "random"])
def test_seeds_do_not_depend_on_the_launcher(both: tuple[Inner, Inner], generator: str) -> None:
    drawn = []
    for inner in both:
        lines = [json.loads(line) for line in (inner.folder / "noted.jsonl").read_text().splitlines()]
        drawn.append({line["rank"]: line[generator] for line in lines})
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0].values())) == 2


def test_a_rank_that_is_still_importing_is_not_cut_off_for_another_s_failure(project: Project) -> None:
    """It waits for no other rank, and may fail in the same way."""
    project.write(
        "conftest.py",
        """
        import os, sys, time

        HERE = os.path.dirname(__file__)

        def first():
            try:
                os.close(os.open(os.path.join(HERE, "first"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
            return True

        if "everyrank.rank.spawned" in sys.orig_argv and first():
            while not os.path.exists(os.path.join(HERE, "failing")):
                time.sleep(0.01)
            busy = time.process_time() + 1
            while time.process_time() < busy:
                pass
        """,
    )
    project.write(
        "test_inner.py",
        """
        import os
        import pytest

        @pytest.mark.world(2)
        def test_fails():
            open(os.path.join(os.path.dirname(__file__), "failing"), "w").close()
            raise ValueError("everywhere")
        """,
    )
    project.forks_keeper = True
    result = project.run("--launcher=spawn")["test_fails"]
    assert result.text.startswith("on ranks 0,1\n"), result.text
