"""The world as a rank sees it: sizes, device, seeds, the shared folder, meetings."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.engines import one_run
from tests.inner import Inner, Project

SOURCE = """
    import json, os, random
    import numpy, pytest, torch

    HERE = os.path.dirname(__file__)

    def note(world, **facts):
        with open(os.path.join(HERE, "noted.jsonl"), "a") as file:
            file.write(json.dumps({"rank": world.rank, "test": os.environ["EVERYRANK_NODEID"], **facts}) + "\\n")


    # --- sizes

    @pytest.mark.world([1, 2, 4])
    def test_sizes(world):
        note(world, size=world.size)

    @pytest.mark.world([2, 3])
    @pytest.mark.parametrize("letter", ["a", "b"])
    def test_sizes_and_parameters(world, letter):
        pass

    @pytest.mark.world(size=3)
    def test_size_by_keyword(world):
        assert world.size == 3

    def test_default_size(world):
        assert world.size == 3

    @pytest.mark.world
    def test_bare_mark(world):
        assert world.size == 3


    # --- the view of the world

    @pytest.mark.world(2)
    def test_view(world, device):
        assert (world.rank, world.size, world.local_rank) == (world.rank, 2, world.rank)
        assert os.environ["RANK"] == os.environ["LOCAL_RANK"] == str(world.rank)
        assert os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"] == "2"
        assert world.device == "cpu" and device == torch.device("cpu")

    @pytest.mark.world(2)
    def test_folder(world):
        assert os.stat(world.folder).st_mode & 0o777 == 0o700
        with open(os.path.join(world.folder, str(world.rank)), "w"):
            pass
        world.barrier()
        assert sorted(os.listdir(world.folder)) == ["0", "1"]
        note(world, folder=world.folder)

    @pytest.mark.world(2)
    def test_next_folder_is_empty(world):
        assert os.listdir(world.folder) == []
        world.barrier()

    @pytest.mark.world(2)
    def test_own_group(world):
        torch.distributed.init_process_group(
            "gloo", init_method=world.init_method, rank=world.rank, world_size=world.size
        )
        t = torch.ones(1)
        torch.distributed.all_reduce(t)
        assert t.item() == 2
        torch.distributed.destroy_process_group()

    @pytest.fixture
    def drawing(world):
        torch.rand(world.rank + 1)  # as many numbers as the rank is high

    @pytest.mark.world(3)
    def test_seeds(world, drawing):
        note(world, seed=world.seed, torch=torch.rand(1).item(), random=random.random(), numpy=numpy.random.rand())

    @pytest.mark.world(3)
    def test_other_seeds(world):
        note(world, seed=world.seed)


    # --- meetings

    @pytest.mark.world(4)
    def test_barrier(world):
        flag = os.path.join(world.folder, "flag")
        if world.rank == 3:
            open(flag, "w").close()
        world.barrier()
        assert os.path.exists(flag)

    @pytest.mark.world(3)
    def test_agree(world):
        world.all_agree({"weights": torch.arange(3.0), "names": ["a", "b"], "none": None})
        world.all_agree(torch.tensor(float("nan")))
        world.all_agree(torch.zeros(2, 3).t())

    @pytest.mark.world(4)
    def test_one_disagrees(world):
        world.all_agree(torch.tensor([1.0, 2.0 if world.rank == 2 else 1.0]))

    @pytest.mark.world(2)
    def test_disagree_in_dtype(world):
        world.all_agree(torch.zeros(2, dtype=torch.float64 if world.rank else torch.float32))

    @pytest.mark.world(2)
    def test_disagree_in_shape(world):
        world.all_agree(torch.zeros((2, 1) if world.rank else (1, 2)))

    @pytest.mark.world(3)
    def test_one_never_comes(world):
        if world.rank != 1:
            world.barrier()

    @pytest.mark.world(2)
    def test_different_points(world):
        if world.rank:
            world.barrier()
        else:
            world.all_agree(1)

    @pytest.mark.world(2)
    def test_different_lines_of_one_kind(world):
        if world.rank:
            world.barrier()
        else:
            world.barrier()
"""

INI = """
    [pytest]
    everyrank_world_size = 3
"""


inner = one_run({"pytest.ini": INI, "test_inner.py": SOURCE})


def noted(inner: Inner, name: str, fact: str) -> dict[int, Any]:
    """Return what each rank noted in a test."""
    lines = [json.loads(line) for line in (inner.folder / "noted.jsonl").read_text().splitlines()]
    return {line["rank"]: line[fact] for line in lines if line["test"].endswith("::" + name)}


@pytest.mark.parametrize(
    "name",
    [
        "test_size_by_keyword",
        "test_default_size",
        "test_bare_mark",
        "test_view",
        "test_folder",
        "test_next_folder_is_empty",
        "test_own_group",
        "test_barrier",
        "test_agree",
        "test_different_lines_of_one_kind",
    ],
)
def test_it_works_in_ranks(inner: Inner, name: str) -> None:
    """The assertions are in the inner test, where a rank makes them."""
    assert inner[name].outcome == "passed", inner[name].text


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_list_of_sizes_runs_the_test_once_for_each(inner: Inner, size: int) -> None:
    assert inner[f"test_sizes[ws{size}]"].outcome == "passed"
    assert noted(inner, f"test_sizes[ws{size}]", "size") == dict.fromkeys(range(size), size)


def test_sizes_multiply_with_parameters(inner: Inner) -> None:
    names = {name for name in inner.outcomes() if name.startswith("test_sizes_and_parameters")}
    assert {frozenset(re.split(r"[\[\]-]", name)[1:-1]) for name in names} == {
        frozenset({size, letter}) for size in ("ws2", "ws3") for letter in "ab"
    }


def test_the_shared_folder_is_removed(inner: Inner) -> None:
    folders = noted(inner, "test_folder", "folder")
    assert folders[0] == folders[1]
    assert not (inner.folder / folders[0]).exists()


@pytest.mark.parametrize("generator", ["seed", "torch", "random", "numpy"])
def test_every_rank_draws_numbers_of_its_own(inner: Inner, generator: str) -> None:
    """Equal seeds on all ranks would hide missing communication."""
    assert len(set(noted(inner, "test_seeds", generator).values())) == 3


def test_seeds_differ_between_tests(inner: Inner) -> None:
    first, second = noted(inner, "test_seeds", "seed"), noted(inner, "test_other_seeds", "seed")
    assert not set(first.values()) & set(second.values())


@pytest.fixture
def first(inner: Inner) -> dict[str, dict[int, Any]]:
    return drawn(inner)


class TestAgain:
    """Seeds are fixed per test."""

    def test_a_second_run_draws_the_same(self, first: dict[str, dict[int, Any]], project: Project) -> None:
        assert drawn(again(project)) == first

    def test_a_world_seed_changes_what_is_drawn(self, first: dict[str, dict[int, Any]], project: Project) -> None:
        second = drawn(again(project, "--world-seed=1"))
        assert all(not set(second[fact].values()) & set(first[fact].values()) for fact in first)

    def test_pytest_randomly_leaves_the_ranks_their_seeds(
        self, first: dict[str, dict[int, Any]], project: Project
    ) -> None:
        """It would give all generators of all ranks one seed."""
        second = again(project, "-p", "pytest_randomly")
        assert "Using --randomly-seed" in second.out
        assert drawn(second) == first


def again(project: Project, *arguments: str) -> Inner:
    project.write("test_inner.py", SOURCE)
    second = project.run("-k", "test_seeds", *arguments)
    assert second["test_seeds"].outcome == "passed"
    return second


def drawn(inner: Inner) -> dict[str, dict[int, Any]]:
    return {fact: noted(inner, "test_seeds", fact) for fact in ("seed", "torch", "random", "numpy")}


def test_the_odd_rank_is_named_with_its_value(inner: Inner) -> None:
    text = inner["test_one_disagrees"].text
    assert "ranks disagree\nE         rank 2: tensor([1., 2.])\nE         ranks 0,1,3: tensor([1., 1.])\n" in text


@pytest.mark.parametrize("form", ["dtype", "shape"])
def test_tensors_agree_bit_for_bit_in_one_form(inner: Inner, form: str) -> None:
    result = inner[f"test_disagree_in_{form}"]
    assert result.outcome == "failed"
    assert "ranks disagree" in result.text


def test_a_rank_that_never_comes_is_named(inner: Inner) -> None:
    result = inner["test_one_never_comes"]
    assert result.outcome == "failed"
    assert "rank 1 ended without coming to barrier() at test_inner.py" in result.text


def test_ranks_at_different_points_are_named_with_their_lines(inner: Inner) -> None:
    text = inner["test_different_points"].text
    assert "ranks met at different points" in text
    assert re.search(r"^E +rank 0: all_agree\(\) at test_inner.py:\d+$", text, re.MULTILINE)
    assert re.search(r"^E +rank 1: barrier\(\) at test_inner.py:\d+$", text, re.MULTILINE)
