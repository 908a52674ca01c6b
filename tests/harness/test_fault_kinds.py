"""Faults at files, keys, connections and results: what holds is green, and a mistake that each must show is red."""

from __future__ import annotations

import pytest

from tests.engines import elsewhere, one_run
from tests.inner import Inner

SOURCE = """
    import errno, os, pathlib
    from datetime import timedelta
    import pytest, torch
    import torch.distributed as dist

    world_of_2, world_of_3 = pytest.mark.world(2), pytest.mark.world(3)
    faults = pytest.mark.faults


    # --- what the tests are about, each right and with a mistake ---

    def save(step, path):
        torch.save(torch.tensor(step), f"{path}.new")
        os.replace(f"{path}.new", path)

    def save_in_place(step, path):
        torch.save(torch.tensor(step), path)

    def checkpoints(folder, save, steps=3):
        for step in range(1, steps + 1):
            try:
                save(step, f"{folder}/checkpoint")
            except (OSError, RuntimeError):
                pass
        return int(torch.load(f"{folder}/checkpoint"))

    def meet(store, world):
        store.set(f"rank {world.rank}", "here")
        return sorted(rank for rank in range(world.size) if store.get(f"rank {rank}") == b"here")

    def meet_who_is_there(store, world):
        store.set(f"rank {world.rank}", "here")
        return sorted(rank for rank in range(world.size) if store.check([f"rank {rank}"]))

    def two_sums(wait_for):
        first, second = torch.ones(3), torch.ones(3)
        works = dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)
        for number in wait_for:
            works[number].wait()
        return [first.tolist(), second.tolist()]

    def sums(times):
        for _ in range(times):
            total = torch.ones(3)
            dist.all_reduce(total)
            assert total.tolist() == [float(dist.get_world_size())] * 3


    # --- files ---

    @world_of_2
    @faults("rank 0 has a full disk at its 3rd file")
    def test_keeps_its_last_checkpoint(world):
        if world.rank == 0:
            assert checkpoints(world.folder, save) == 2

    @world_of_2
    @faults("rank 0 has a full disk at its 3rd file")
    def test_writes_over_its_last_checkpoint(world):
        if world.rank == 0:
            assert checkpoints(world.folder, save_in_place) == 2

    @world_of_2
    @faults("rank 0 dies at each file")
    def test_a_death_leaves_a_checkpoint(world):
        folder = world.beside("kept")  # of rank 0, which has died when rank 1 looks
        if world.rank == 0:
            os.makedirs(folder)
            save(0, f"{folder}/checkpoint")
            checkpoints(folder, save)
        else:
            world.somebody_left()
            if not world.faults or not world.faults[0].endswith("1st file"):
                torch.load(f"{folder}/checkpoint")

    @world_of_2
    @faults("rank 0 dies at each file")
    def test_a_death_leaves_half_a_checkpoint(world):
        folder = world.beside("half")
        if world.rank == 0:
            os.makedirs(folder)
            checkpoints(folder, save_in_place, 2)
        else:
            world.somebody_left()
            torch.load(f"{folder}/checkpoint")

    @world_of_2
    @faults("rank 1 has a full disk at its 2nd file")
    def test_counts_what_is_opened_to_write(world, tmp_path):
        def full(act):
            if world.rank == 1:
                with pytest.raises(OSError) as caught:
                    act()
                assert caught.value.errno == errno.ENOSPC
            else:
                act()

        (tmp_path / "a").write_text("1")
        assert open(tmp_path / "a").read() == "1"
        open(os.devnull, "w").close()
        full(lambda: (tmp_path / "b").write_text("2"))
        (tmp_path / "c").write_text("3")
        assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["1", "" if world.rank else "2", "3"]

    @world_of_2
    @faults("rank 0 has a full disk at its 1st file")
    def test_descriptors_meet_it_too(world, tmp_path):
        fd = os.open(tmp_path / "a", os.O_CREAT | os.O_WRONLY)
        if world.rank == 0:
            with pytest.raises(OSError, match="No space left"):
                os.write(fd, b"1")
        os.close(fd)

    @world_of_2
    @faults("rank 0 waits 0.1 s before its 1st file", "rank 1 raises PermissionError at its 1st file")
    def test_other_faults_at_files(world, tmp_path):
        if world.rank == 1:
            with pytest.raises(PermissionError, match="as planned"):
                (tmp_path / "a").write_text("1")
        (tmp_path / "a").write_text("1")

    @world_of_2
    @faults("rank 0 has a full disk at its 2nd file")
    def test_opens_too_few(world, tmp_path):
        (tmp_path / "a").write_text("1")


    # --- keys ---

    def store_of(world):
        store = dist.FileStore(f"{world.folder}/store", world.size)
        store.set_timeout(timedelta(seconds=0.5))
        return store

    @world_of_3
    @faults("rank 1 drops its 1st key")
    def test_names_the_rank_that_is_missing(world):
        with pytest.raises(RuntimeError, match="rank 1"):
            meet(store_of(world), world)

    @world_of_3
    @faults("rank 1 drops its 1st key")
    def test_goes_on_without_a_rank(world):
        store = store_of(world)
        store.set(f"rank {world.rank}", "here")
        world.barrier()
        assert [rank for rank in range(world.size) if store.check([f"rank {rank}"])] == [0, 1, 2]

    @world_of_3
    @faults("rank 1 waits 0.2 s before its 1st key")
    def test_waits_for_a_late_key(world):
        assert meet(dist.FileStore(f"{world.folder}/store", world.size), world) == [0, 1, 2]

    @world_of_3
    @faults("rank 1 waits 1 s before its 1st key")
    def test_takes_who_is_there(world):
        assert meet_who_is_there(store_of(world), world) == [0, 1, 2]

    @world_of_2
    @faults("rank 1 drops each key")
    def test_each_way_to_set_a_key(world):
        store = dist.HashStore()
        dropped = bool(world.faults) and world.rank == 1 and "5th" not in world.faults[0]  # which adds nothing
        store.set("a", "1")
        assert store.add("b", 2) == 2
        store.append("c", "3")
        assert store.compare_set("d", "", "4") == b"4"
        there = [name for name in "acd" if store.check([name])] + ["b"] * (store.add("b", 0) == 2)
        assert len(there) == (3 if dropped else 4)

    @world_of_2
    @faults("rank 1 dies after its 1st key")
    def test_a_rank_that_has_met_dies(world):
        assert meet(store_of(world), world) == [0, 1]

    @world_of_2
    @faults("rank 1 drops its 1st key")
    def test_groups_meet_by_keys_that_are_not_counted(process_group):
        dist.new_group()
        dist.HashStore().set("a", "1")


    # --- connections ---

    @world_of_3
    @faults("rank 1 is cut off at its 3rd collective")
    def test_all_notice_that_one_is_cut_off(process_group):
        sums(2)
        with pytest.raises(RuntimeError, match="[Pp]eer"):
            sums(1)

    @pytest.mark.world(4)
    @faults("rank 2 is cut off at its 2nd collective")  # after the first, all have made the group
    def test_of_four_ranks_all_notice(process_group):
        sums(1)
        with pytest.raises(RuntimeError, match="[Pp]eer"):
            sums(1)

    @world_of_3
    @faults("rank 1 is cut off at each collective")
    def test_goes_on_in_a_new_group(world):
        for attempt in range(2):
            file = f"{world.folder}/group {attempt}"
            dist.init_process_group("gloo", init_method=f"file://{file}", rank=world.rank, world_size=world.size)
            world.barrier()  # a cut before all have met is an error of init_process_group
            try:
                sums(3)
            except RuntimeError:
                pass
            dist.destroy_process_group()
        assert world.somebody_left() is False

    @world_of_3
    @faults("rank 1 is cut off at its 2nd collective")
    def test_lets_the_error_of_a_cut_out(process_group):
        sums(2)

    @world_of_3
    @faults("rank 1 is cut off at its 2nd collective")
    def test_takes_a_cut_for_the_end_of_its_data(process_group):
        done = 0
        try:
            for _ in range(3):
                sums(1)
                done += 1
        except RuntimeError:
            pass
        assert done == 3


    # --- results ---

    @world_of_2
    @faults("rank 1 gets a late result from its 1st collective")
    def test_waits_for_both(process_group):
        assert two_sums([1, 0]) == [[2.0] * 3] * 2

    @world_of_2
    @faults("rank 1 gets a late result from its 1st collective")
    def test_waits_for_the_last_alone(process_group, world):
        # On rank 0 as well, the first may really be late on a busy machine.
        assert two_sums([1] if world.rank == 1 else [1, 0]) == [[2.0] * 3] * 2

    @world_of_2
    @faults("rank 0 gets a late result from its 1st collective")
    def test_looks_until_it_is_over(process_group, world):
        total = torch.ones(3)
        work = dist.all_reduce(total, async_op=True)
        while not work.is_completed():
            pass
        assert total.tolist() == [2.0] * 3

    @world_of_2
    @faults("rank 0 gets a late result from its 1st collective")
    def test_asks_for_the_future(process_group):
        parts = [torch.zeros(2), torch.zeros(2)]
        dist.all_gather(parts, torch.ones(2), async_op=True).get_future().wait()
        assert [part.tolist() for part in parts] == [[1.0] * 2] * 2

    @world_of_2
    @faults("rank 1 gets a late result from its 2nd collective")
    def test_has_no_work(process_group):
        sums(3)

    @world_of_2
    def test_after_them(process_group, world):
        sums(2)
        pathlib.Path(world.folder, str(world.rank)).write_text("1")
        assert dist.HashStore().add("a", 1) == 1
"""

worlds = one_run(SOURCE, launchers=["fork", elsewhere("spawn"), elsewhere("torchrun")])

GREEN = (
    "test_keeps_its_last_checkpoint",
    "test_a_death_leaves_a_checkpoint",
    "test_counts_what_is_opened_to_write",
    "test_descriptors_meet_it_too",
    "test_other_faults_at_files",
    "test_names_the_rank_that_is_missing",
    "test_waits_for_a_late_key",
    "test_each_way_to_set_a_key",
    "test_a_rank_that_has_met_dies",
    "test_groups_meet_by_keys_that_are_not_counted",
    "test_all_notice_that_one_is_cut_off",
    "test_of_four_ranks_all_notice",
    "test_goes_on_in_a_new_group",
    "test_waits_for_both",
    "test_looks_until_it_is_over",
    "test_asks_for_the_future",
    "test_after_them",
)
#: test -> where its report begins, and texts that it has. Each test has failed.
RED = {
    "test_writes_over_its_last_checkpoint": ("rank 0 of 2 failed first, in call", "torch.load"),
    "test_a_death_leaves_half_a_checkpoint": (
        "fails when rank 0 dies at its 1st file (torch.save at test_inner.py:18)\n"
        "fails when rank 0 dies at its 2nd file (torch.save at test_inner.py:18)\n"
        "at the first of them:\n",
    ),
    "test_opens_too_few": (
        'the fault did not happen: rank 0 opened 1 file ("rank 0 has a full disk at its 2nd file")',
    ),
    "test_goes_on_without_a_rank": ("on ranks 0-2", "assert [0, 2] == [0, 1, 2]"),
    "test_takes_who_is_there": ("", "assert [0, 2] == [0, 1, 2]"),
    "test_lets_the_error_of_a_cut_out": (
        "rank 1: is cut off at its 2nd collective, all_reduce at test_inner.py:46, as planned; the test lets the",
        "peer",
    ),
    "test_takes_a_cut_for_the_end_of_its_data": ("on ranks 0-2", "assert 1 == 3"),
    "test_waits_for_the_last_alone": ("rank 1 of 2 failed first", "assert [[1.0, 1.0, 1...."),
    "test_has_no_work": (
        "the fault did not happen: all_reduce at test_inner.py:46 returns no Work that the test could wait for late",
    ),
}


@pytest.mark.parametrize("test", GREEN)
def test_what_holds_under_its_fault_is_green(worlds: Inner, test: str) -> None:
    worlds.check(test, "passed")


@pytest.mark.parametrize("test", RED)
def test_a_mistake_that_a_fault_shows_is_red(worlds: Inner, test: str) -> None:
    headline, *texts = RED[test]
    worlds.check(test, "failed", f"^{headline}", *texts)
