"""``@pytest.mark.faults``: each fault acts, and a test is red unless its survivors do what it asserts."""

from __future__ import annotations

import pytest
import torch
from everyrank.faults.planned import flip

from tests.engines import elsewhere, one_run
from tests.inner import Inner, Project

SOURCE = """
    import os, signal, time
    import pytest, torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    world_of_2, world_of_4 = pytest.mark.world(2), pytest.mark.world(4)
    faults = pytest.mark.faults


    def sums(times=4):
        made = []
        for _ in range(times):
            made.append(torch.ones(3))
            dist.all_reduce(made[-1])
        return [total.tolist() for total in made]

    def survivors_lose_a_peer(act=sums):
        with pytest.raises(RuntimeError, match="[Pp]eer"):
            act()

    @world_of_4
    @faults("rank 1 dies at its 3rd collective")
    def test_dies(process_group, world):
        assert world.faults == ("rank 1 dies at its 3rd collective",)
        assert sums(2) == [[4.0] * 3] * 2
        survivors_lose_a_peer()

    @world_of_4
    @faults("rank 2 dies by SIGTERM at its 1st collective")
    def test_dies_by_sigterm(process_group):
        survivors_lose_a_peer()

    @world_of_2
    @faults("rank 0 exits with 3 after its 2nd collective")
    def test_exits_after(process_group):
        assert sums(2) == [[2.0] * 3] * 2  # rank 0 had its part in the 2nd
        survivors_lose_a_peer()

    @world_of_4
    @faults("rank 2 raises ValueError at its 2nd collective")
    def test_raises(process_group, world):
        sums() if world.rank == 2 else survivors_lose_a_peer()

    @world_of_4
    @faults("rank 2 raises ValueError at its 2nd collective")
    def test_raises_and_is_caught(process_group, world):
        if world.rank == 2:
            with pytest.raises(ValueError, match="rank 2 raises ValueError at its 2nd collective, as planned"):
                sums()
        else:
            survivors_lose_a_peer()

    @world_of_2
    @faults("rank 1 dies at its 3rd collective")
    def test_dies_at_a_barrier(process_group):
        sums(2)
        survivors_lose_a_peer(dist.barrier)

    @world_of_2
    @faults("rank 1 dies at its 4th collective")
    def test_dies_in_the_backward_of_ddp(process_group):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))  # three collectives
        survivors_lose_a_peer(model(torch.ones(1, 2)).sum().backward)
        del model

    @world_of_2
    @faults("rank 1 raises ValueError at its 4th collective")
    def test_raises_in_the_backward_of_ddp(process_group, world):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        backward = model(torch.ones(1, 2)).sum().backward
        backward() if world.rank == 1 else survivors_lose_a_peer(backward)
        del model

    @world_of_2
    @faults("rank 0 waits 0.3 s before its 2nd collective")
    def test_waits(process_group, world):
        began = time.monotonic()
        assert sums(2) == [[2.0] * 3] * 2
        assert time.monotonic() - began >= 0.29

    @world_of_2
    @faults("rank 0 gets a flipped bit from its 2nd collective")
    def test_gets_a_flipped_bit(process_group, world):
        assert sums(3) == [[2.0] * 3, [4.0, 2.0, 2.0] if world.rank == 0 else [2.0] * 3, [2.0] * 3]

    @world_of_4
    @faults("rank 1 dies at its 2nd collective", "rank 0 waits 0.1 s before its 1st collective")
    @faults("rank 2 gets a flipped bit from its 1st collective")
    def test_several(process_group, world):
        assert sums(1) == [[2.0, 4.0, 4.0] if world.rank == 2 else [4.0] * 3]
        survivors_lose_a_peer()

    @world_of_2
    @faults("rank 1 dies by SIGTERM at its 2nd collective")
    def test_a_handler_lets_the_rank_live_on(process_group, world):
        signals = []
        before = signal.signal(signal.SIGTERM, lambda *caught: signals.append(caught))
        assert sums() == [[2.0] * 3] * 4
        signal.signal(signal.SIGTERM, before)
        assert len(signals) == (world.rank == 1)

    @world_of_2
    def test_after_them(process_group):
        assert sums() == [[2.0] * 3] * 4

    # --- red ---

    @world_of_2
    @faults("rank 1 dies at its 3rd collective")
    def test_swallows_the_error_and_asserts_that_all_is_well(process_group):
        made = []
        try:
            made += sums(2)
            made += sums()
        except RuntimeError:
            pass
        assert len(made) == 6

    @world_of_4
    @faults("rank 1 dies at its 3rd collective")
    def test_lets_the_error_out(process_group):
        sums()

    @world_of_2
    @faults("rank 1 dies at its 3rd collective")
    def test_makes_too_few(process_group):
        sums(2)

    @world_of_2
    @faults("rank 1 dies at its 3rd collective")
    def test_waits_for_what_does_not_come(process_group):
        with pytest.raises(RuntimeError):
            sums(2)

    @pytest.mark.world(2, timeout=6)  # of which its group takes two on a busy machine
    @faults("rank 1 dies at its 1st collective")
    def test_a_survivor_hangs(process_group):
        survivors_lose_a_peer()
        while True:
            time.sleep(0.1)

    @world_of_2
    @faults("rank 1 dies at its 2nd collective")
    def test_another_death(process_group, world):
        sums(1)
        if world.rank == 1:
            os._exit(5)
        survivors_lose_a_peer()

    @pytest.mark.world(3)
    @faults("rank 1 dies at its 2nd collective")
    def test_a_survivor_dies_as_well(process_group, world):
        survivors_lose_a_peer()
        if world.rank == 2:
            os.kill(os.getpid(), signal.SIGSEGV)

    @world_of_2
    @faults("rank 1 raises ValueError at its 1st collective")
    def test_raises_and_makes_another_error_of_it(process_group, world):
        if world.rank == 1:
            try:
                sums()
            except ValueError as error:
                raise KeyError("another") from error
        survivors_lose_a_peer()

    @world_of_2
    @faults("rank 1 gets a flipped bit from its 1st collective")
    def test_a_barrier_has_no_bit(process_group):
        dist.barrier()

    @world_of_2
    @faults("rank 1 gets a flipped bit from its 1st collective")
    def test_looks_at_the_sums(process_group):
        assert sums(1) == [[2.0] * 3]

    @world_of_2
    @faults("rank 1 dies at its 3rd collective")
    def test_skips(process_group):
        pytest.skip("not today")

    @world_of_2
    @faults("rank 1 explodes")
    def test_not_understood(process_group):
        pass

    @world_of_2
    @faults(act="dies")
    def test_keyword(process_group):
        pass

    @world_of_2
    @faults("rank 2 dies at its 3rd collective")
    def test_no_such_rank(process_group):
        pass

    @faults("rank 1 dies at its 3rd collective")
    def test_in_one_process():
        pass
"""

worlds = one_run(SOURCE, launchers=["fork", elsewhere("spawn"), elsewhere("torchrun")])

GREEN = (
    "test_dies",
    "test_dies_by_sigterm",
    "test_exits_after",
    "test_raises",
    "test_raises_and_is_caught",
    "test_dies_at_a_barrier",
    "test_dies_in_the_backward_of_ddp",
    "test_raises_in_the_backward_of_ddp",
    "test_waits",
    "test_gets_a_flipped_bit",
    "test_several",
    "test_a_handler_lets_the_rank_live_on",
    "test_after_them",
)
PLANNED = "rank 1: dies at its 3rd collective, all_reduce at test_inner.py:15, as planned"
#: test -> where its report begins, and texts that it has. Each test has failed.
RED = {
    "test_swallows_the_error_and_asserts_that_all_is_well": ("rank 0 of 2 failed first", "assert 2 == 6", PLANNED),
    "test_lets_the_error_out": (f"{PLANNED}; the test lets the error out\nrank", "lost the connection to a peer"),
    "test_makes_too_few": (
        'the fault did not happen: rank 1 made 2 collectives ("rank 1 dies at its 3rd collective")',
    ),
    "test_waits_for_what_does_not_come": (
        "the fault did not happen: rank 1 made 2 collectives",
        "on ranks 0,1",
        "DID NOT RAISE",
    ),
    "test_a_survivor_hangs": (
        "rank 0 is in test_a_survivor_hangs",
        "missed its deadline of 6 s (the mark world): rank 0 had not finished",
        "rank 1: dies at its 1st collective, all_reduce at test_inner.py:15, as planned",
    ),
    "test_another_death": ("rank 1 of 2 left without a record (exit code 5) in call",),
    "test_a_survivor_dies_as_well": (
        "rank 2 of 3 was killed by SIGSEGV in call",
        "rank 1: dies at its 2nd collective, all_reduce at test_inner.py:15, as planned",
    ),
    "test_raises_and_makes_another_error_of_it": ("rank 1 of 2 failed first", "KeyError: 'another'"),
    "test_a_barrier_has_no_bit": ("the fault did not happen: barrier at test_inner.py:", "gives rank 1 no tensor"),
    "test_looks_at_the_sums": ("rank 1 of 2 failed first", "assert [[4.0, 2.0, 2.0]] == [[2.0, 2.0, 2.0]]"),
}
REFUSED = {
    "test_not_understood": "the mark faults: 'rank 1 explodes' is not understood; what is understood is",
    "test_keyword": "the mark faults takes texts, and no keyword such as act",
    "test_no_such_rank": "is about a rank that a world of 2 does not have",
    "test_in_one_process": "the mark faults is for multi-rank tests: add the mark world, as in world(2)",
}


@pytest.mark.parametrize("test", GREEN)
def test_a_fault_happens_and_the_test_decides(worlds: Inner, test: str) -> None:
    worlds.check(test, "passed")


@pytest.mark.parametrize("test", RED)
def test_a_test_that_does_not_hold_under_its_fault_is_red(worlds: Inner, test: str) -> None:
    headline, *texts = RED[test]
    worlds.check(test, "failed", f"^{headline}", *texts)


@pytest.mark.parametrize("test", REFUSED)
def test_a_mark_that_cannot_be_obeyed_is_an_error(worlds: Inner, test: str) -> None:
    worlds.check(test, "error", REFUSED[test])


def test_a_test_that_skips_is_skipped(worlds: Inner) -> None:
    worlds.check("test_skips", "skipped", "not today")


@pytest.mark.parametrize("arguments", [["--fresh-worlds"], ["-n", "2"]])
def test_in_fresh_worlds_and_under_xdist(project: Project, arguments: list[str]) -> None:
    project.write("test_inner.py", SOURCE.partition("# --- red ---")[0])
    ended = project.run(*arguments)
    assert ended.outcomes() == dict.fromkeys(GREEN, "passed"), ended.out
    assert ended.code == 0


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.complex64,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
)
def test_a_flipped_bit_changes_one_element_and_a_second_flip_brings_it_back(dtype: torch.dtype) -> None:
    whole = torch.arange(12).view(3, 4).to(dtype)
    part = whole.t()[1:3]  # which is not contiguous
    before = part.clone()
    flip(part)
    changed = (part != before).nonzero()
    assert len(changed) == 1
    assert torch.equal(whole.t()[1:3], part)
    if dtype.is_floating_point:
        assert part[tuple(changed[0])] in (2 * before.max(), before.max() / 2)
