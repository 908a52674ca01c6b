"""``pytest --mutate``: tests with a known hole are found by file and line, and honest tests have no survivor."""

from __future__ import annotations

from typing import Any

import pytest

from tests import run_files
from tests.inner import Inner, Project
from tests.run_files import RunFile

IMPORTS = """
import pytest, torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel


def ranks(world, *shape):
    return torch.full(shape or (3,), float(world.rank + 1))
"""

#: Tests with a hole, on three ranks: what they do, and the changes that they do not notice, by way and call.
HOLES: dict[str, tuple[str, set[tuple[str, str]]]] = {
    "looks_at_the_shape": (
        "total = ranks(world); dist.all_reduce(total); assert total.shape == (3,)",
        {(way, "all_reduce") for way in ("left-out", "mean", "zero", "twice", "without")},
    ),
    "looks_at_the_sign": (
        "total = ranks(world); dist.all_reduce(total); assert (total > 0).all()",
        {(way, "all_reduce") for way in ("left-out", "mean", "zero", "twice", "without")},
    ),
    "looks_at_a_ratio": (
        "both = torch.stack([ranks(world), 2 * ranks(world)]); dist.all_reduce(both); "
        "assert torch.equal(both[1], 2 * both[0])",
        {(way, "all_reduce") for way in ("left-out", "mean", "zero", "twice", "without")},
    ),
    "compares_ranks_only": (
        "total = ranks(world); dist.all_reduce(total); world.all_agree(total.tolist())",
        {(way, "all_reduce") for way in ("mean", "zero", "twice")},
    ),
    "takes_the_direction": (
        "total = ranks(world); dist.all_reduce(total); total /= total.norm(); assert total[0] == total[1]",
        {(way, "all_reduce") for way in ("left-out", "mean", "zero", "twice", "without")},
    ),
    "broadcasts_and_forgets": (
        "model = ranks(world); dist.broadcast(model, 1); assert not model.isnan().any()",
        {("left-out", "broadcast"), ("root", "broadcast")},
    ),
    "gathers_and_counts": (
        "parts = [torch.zeros(3) for _ in range(3)]; dist.all_gather(parts, ranks(world)); assert len(parts) == 3",
        {(way, "all_gather") for way in ("left-out", "zero", "twice")},
    ),
    "looks_at_its_own_part": (
        "whole = torch.zeros(9); dist.all_gather_into_tensor(whole, ranks(world)); "
        "assert torch.equal(whole.view(3, 3)[world.rank], ranks(world))",
        {("left-out", "all_gather_into_tensor")},
    ),
    "scatters_sums": (
        "part = torch.zeros(1); dist.reduce_scatter_tensor(part, ranks(world)); assert part.dtype == torch.float32",
        {(way, "reduce_scatter_tensor") for way in ("left-out", "mean", "zero", "twice")},
    ),
    "reduces_to_a_root": (
        "total = ranks(world); dist.reduce(total, 0); assert world.rank or total[0] >= 1",
        {(way, "reduce") for way in ("left-out", "mean", "twice")},
    ),
    "gathers_on_a_root": (
        "parts = [torch.zeros(3) for _ in range(3)] if world.rank == 0 else None; dist.gather(ranks(world), parts)",
        {("zero", "gather"), ("twice", "gather")},
    ),
    "scatters_from_a_root": (
        "part = torch.zeros(3); dist.scatter(part, [ranks(world)] * 3 if world.rank == 0 else None)",
        {("zero", "scatter")},
    ),
    "exchanges": (
        "taken = torch.zeros(3); dist.all_to_all_single(taken, ranks(world)); assert taken.sum() != 0",
        {("left-out", "all_to_all_single"), ("zero", "all_to_all_single")},
    ),
    "reduces_by_a_function": (
        "total = functional.all_reduce(ranks(world), 'sum', dist.group.WORLD); assert total.shape == (3,)",
        {(way, "all_reduce") for way in ("left-out", "mean", "zero", "twice", "without")},
    ),
    "trains_without_a_look": (
        "torch.manual_seed(0); model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False)); "
        "model(ranks(world, 4, 2)).sum().backward(); assert model.module.weight.grad is not None",
        {(way, "all_reduce") for way in ("left-out", "mean", "zero", "twice", "without")},
    ),
    "waits_for_nothing": (
        "whole = torch.zeros(9); dist.all_gather_into_tensor(whole, ranks(world), async_op=True).wait(); "
        "assert whole.shape == (9,)",
        {("no-wait", "all_gather_into_tensor")},
    ),
    "keeps_the_last_loss": (
        "losses = [ranks(world) * step for step in (1, 2, 3)]; [dist.all_reduce(loss) for loss in losses]; "
        "assert losses[0][0] == 6 and losses[1][0] == 12",
        {(way, "all_reduce") for way in ("left-out", "mean", "zero", "twice", "without", "stale")},
    ),
    "reads_the_last_message": (
        "peers = [dist.isend(ranks(world) * step, (world.rank + 1) % 3) for step in (1, 2)]; "
        "taken = [torch.zeros(3), torch.zeros(3)]; [dist.recv(one, (world.rank + 2) % 3) for one in taken]; "
        "[peer.wait() for peer in peers]; assert taken[0][0] == (world.rank + 2) % 3 + 1",
        {("stale", "send"), ("zero", "send")},
    ),
    "draws_on_each_rank": (
        "mask = torch.rand(3); parts = [torch.zeros(3) for _ in range(3)]; dist.all_gather(parts, mask); "
        "assert torch.equal(parts[world.rank], mask)",
        {("seed", ""), ("left-out", "all_gather")},
    ),
    "reduces_in_a_group": (
        "group = dist.new_group([0, 1]); total = ranks(world); "
        "dist.all_reduce(total, group=group) if world.rank < 2 else None; assert total.numel() == 3; "
        "dist.destroy_process_group(group) if world.rank < 2 else None",
        {(way, "all_reduce") for way in ("left-out", "mean", "zero", "twice")},
    ),
}

HONEST = {
    "sums": "total = ranks(world); dist.all_reduce(total); assert total.tolist() == [6] * 3",
    "gathers": "parts = [torch.zeros(3) for _ in range(3)]; dist.all_gather(parts, ranks(world)); "
    "assert [part[0].item() for part in parts] == [1, 2, 3]",
    "broadcasts": "model = ranks(world); dist.broadcast(model, 1); assert model.tolist() == [2] * 3",
    "scatters_sums": "part = torch.zeros(1); dist.reduce_scatter_tensor(part, ranks(world)); assert part.item() == 6",
    "trains": "torch.manual_seed(0); model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False)); "
    "model(ranks(world, 4, 2)).sum().backward(); assert model.module.weight.grad.tolist() == [[8, 8]]",
    "reduces_by_a_function": "total = functional.all_reduce(ranks(world), 'sum', dist.group.WORLD); "
    "assert total.tolist() == [6] * 3",
    "gathers_coalesced": "parts = [[torch.zeros(3), torch.zeros(2)] for _ in range(3)]; "
    "dist.all_gather_coalesced(parts, [ranks(world), ranks(world, 2)]); "
    "assert [[part.mean().item() for part in both] for both in parts] == [[1, 1], [2, 2], [3, 3]]",
    "keeps_what_it_made": "kept = globals().setdefault('KEPT', []); model = ranks(world); "
    "kept or kept.append(dist.broadcast(model, 1)); total = ranks(world); dist.all_reduce(total); "
    "assert total.tolist() == [6] * 3",
    "exchanges": "taken = torch.zeros(3); dist.all_to_all_single(taken, ranks(world)); "
    "assert taken.tolist() == [1, 2, 3]",
}

OTHERS = """
def test_reduces_twice(process_group, world):
    total = ranks(world)
    dist.all_reduce(total)
    dist.all_reduce(total, dist.ReduceOp.MAX)
    assert total.tolist() == [6] * 3

def test_makes_no_collective(process_group): pass

def test_has_equal_inputs(process_group):
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [3] * 3

def test_counts_its_calls(process_group, world):
    with torch.autograd.profiler.profile() as profiled:
        dist.all_reduce(ranks(world), dist.ReduceOp.MAX)
    assert sum(event.name == "gloo:all_reduce" for event in profiled.function_events) == 1

def test_sends_the_time(process_group, world):
    import time
    now = torch.tensor(time.time_ns())
    dist.broadcast(now, 0)
    world.all_agree(now.item())

KEPT = []
def test_alternates(process_group, world):
    KEPT.append(0)
    total = ranks(world)
    dist.all_reduce(total) if len(KEPT) % 2 else dist.broadcast(total, 0)
    assert total.tolist() == [6 if len(KEPT) % 2 else 1] * 3

def test_is_red(process_group, world):
    dist.all_reduce(ranks(world))
    assert False

@pytest.mark.mutate(floor=0.9)
def test_is_below_its_floor(process_group, world):
    total = ranks(world)
    dist.all_reduce(total)
    assert total.shape == (3,)

@pytest.mark.mutate(2)
def test_has_a_wrong_floor(process_group): pass

def test_hangs_if_it_is_left_out(process_group, world):
    total = ranks(world)
    dist.all_reduce(total)
    if world.rank == 0 and total[0] != 6:
        return
    dist.barrier()
    assert total[0] == 6 or world.rank == 0

def test_dies_if_it_is_left_out(process_group, world):
    import os
    total = ranks(world)
    dist.all_reduce(total)
    if total[0] != 6:
        os._exit(3)
"""


def _test(name: str, body: str) -> str:
    return f"def test_{name}(process_group, world):\n" + "".join(f"    {line}\n" for line in body.split("; "))


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    module_project.write("pytest.ini", "[pytest]\neveryrank_world_size = 3\n")
    module_project.write("test_holes.py", "\n".join([IMPORTS, *(_test(n, body) for n, (body, _) in HOLES.items())]))
    module_project.write("test_honest.py", "\n".join([IMPORTS, *(_test(n, body) for n, body in HONEST.items())]))
    module_project.write("test_others.py", IMPORTS + OTHERS)
    return module_project.run("--mutate", "--mutate-budget=10m", "--run-file=run.jsonl")


@pytest.fixture(scope="module")
def lines(inner: Inner) -> RunFile:
    return run_files.read(inner.folder / "run.jsonl")


def _mutation(lines: RunFile, file: str, name: str) -> dict[str, Any]:
    (line,) = [case for case in lines.cases if case["id"] == f"test_{file}.py::test_{name}"]
    found: dict[str, Any] = line.get("mutation") or {}
    return found


def _with(mutation: dict[str, Any], outcome: str) -> list[dict[str, Any]]:
    return [mutant for mutant in mutation["mutants"] if mutant["outcome"] == outcome]


@pytest.mark.parametrize("name", HOLES)
def test_a_known_hole_is_found(lines: RunFile, name: str) -> None:
    survived = _with(_mutation(lines, "holes", name), "survived")
    found = {(mutant["way"], mutant["name"]) for mutant in survived}
    assert HOLES[name][1] <= found
    assert all(mutant["location"].startswith("test_holes.py:") for mutant in survived if mutant["name"])


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_test_has_no_survivor(lines: RunFile, name: str) -> None:
    mutation = _mutation(lines, "honest", name)
    assert _with(mutation, "survived") == _with(mutation, "unstable") == _with(mutation, "not-landed") == []
    assert _with(mutation, "killed")


def test_a_collective_that_changes_nothing_is_no_survivor(lines: RunFile, inner: Inner) -> None:
    mutation = _mutation(lines, "others", "reduces_twice")
    assert _with(mutation, "survived") == []
    assert "left-out" in {mutant["way"] for mutant in _with(mutation, "redundant")}


def test_a_profiler_of_the_user_sees_no_call_of_ours(lines: RunFile) -> None:
    mutation = _mutation(lines, "others", "counts_its_calls")
    assert _with(mutation, "unstable") == _with(mutation, "killed") == []
    assert _with(mutation, "survived")


def test_a_seed_is_not_judged_if_the_inputs_are_others_in_each_run(lines: RunFile) -> None:
    (seed,) = [m for m in _mutation(lines, "others", "sends_the_time")["mutants"] if m["way"] == "seed"]
    assert (seed["outcome"], seed["message"]) == (
        "not-landed",
        "what the ranks give to collectives is another in each run",
    )


def test_a_change_of_one_call_never_falls_on_another(lines: RunFile) -> None:
    mutation = _mutation(lines, "others", "alternates")
    assert {mutant["name"] for mutant in mutation["mutants"]} == {"broadcast", ""}
    made = len(_with(mutation, "killed")) + len(_with(mutation, "redundant"))
    assert len(_with(mutation, "not-landed")) >= 1
    assert made + len(_with(mutation, "not-landed")) == len(mutation["mutants"])


def test_hangs_and_deaths_are_kills_and_shown_as_such(lines: RunFile) -> None:
    hangs = _with(_mutation(lines, "others", "hangs_if_it_is_left_out"), "killed")
    deaths = _with(_mutation(lines, "others", "dies_if_it_is_left_out"), "killed")
    assert "timeout" in {mutant["by"] for mutant in hangs}
    assert {mutant["by"] for mutant in deaths} == {"crash"}


def test_what_is_remarkable_is_stated_without_a_change(lines: RunFile) -> None:
    assert _mutation(lines, "others", "makes_no_collective")["remarks"] == [
        "this multi-rank test made no collective that can be changed"
    ]
    assert _mutation(lines, "others", "has_equal_inputs")["remarks"] == [
        "all ranks had equal inputs in the one collective that takes something from all ranks"
    ]


def test_a_red_test_is_not_changed(lines: RunFile, inner: Inner) -> None:
    inner.check("test_is_red", "failed", "assert False")
    assert _mutation(lines, "others", "is_red") == {}


def test_a_test_below_its_floor_fails(inner: Inner) -> None:
    inner.check(
        "test_is_below_its_floor",
        "failed",
        "the test notices 0 of 5 changes of its collectives, below its floor of 0.9",
        "nothing notices if the all_reduce at test_others.py:",
    )
    inner.check("test_has_a_wrong_floor", "error", "^the mark mutate takes a floor from 0 to 1: write mutate(floor=")


def test_the_end_of_the_run_names_survivors_by_file_and_line(inner: Inner) -> None:
    line = (inner.folder / "test_holes.py").read_text().splitlines().index("    dist.all_reduce(total)") + 1
    assert f"  nothing notices if the all_reduce at test_holes.py:{line} is left out\n" in inner.out
    assert "killed (" in inner.out
    assert "--mutate-budget=600s" in inner.out


BAD = {
    ("--mutate", "-k", "single"): "--mutate changes collectives of multi-rank tests, and none was collected",
    ("--mutate", "--mutate-budget=soon"): "--mutate-budget must be a time above 0 such as 60s or 2m, not 'soon'",
    ("--mutate-budget=60s",): "--mutate-budget is the time for --mutate, which was not given",
    ("--mutate", "-oeveryrank_mutate=2"): "ini key everyrank_mutate: must be a number from 0 to 1, not '2'",
    ("--mutate", "--pdb"): "--mutate runs tests that are meant to fail: leave out --pdb",
}


@pytest.mark.parametrize("options", BAD, ids=" ".join)
def test_bad_use_is_one_sentence(project: Project, options: tuple[str, ...]) -> None:
    project.write("test_inner.py", "def test_on_ranks(world): pass\ndef test_single(): pass\n")
    refused = project.run(*options)
    assert refused.code == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {BAD[options]}" in refused.out
    assert "Traceback" not in refused.out


def test_a_small_budget_takes_a_sample_and_names_its_seed(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\neveryrank_world_size = 3\n")
    project.write("test_inner.py", IMPORTS + _test("sums", HONEST["sums"]))
    out = project.run("--mutate", "--mutate-budget=0.001s", "--mutate-seed=7", "-q").out
    assert "a sample of 1 of 6, drawn by --mutate-seed=7" in out


@pytest.mark.parametrize("option", ["-n2", "--launcher=spawn", "--fresh-worlds"])
def test_survivors_are_the_same_however_ranks_are_started(project: Project, option: str) -> None:
    project.write("pytest.ini", "[pytest]\neveryrank_world_size = 3\n")
    tests = {"sums": HONEST["sums"], "looks_at_the_shape": HOLES["looks_at_the_shape"][0]}
    project.write("test_inner.py", IMPORTS + "".join(_test(*each) for each in tests.items()))
    out = project.run("--mutate", option).out
    survivors = [line for line in out.splitlines() if line.startswith("  nothing notices")]
    assert len(survivors) == len(HOLES["looks_at_the_shape"][1]), out
    assert "12 mutants of 2 collectives in 2 tests" in out
