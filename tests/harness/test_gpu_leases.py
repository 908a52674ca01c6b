"""Leases on GPUs are never shared by accident, are taken all at once, and last as long as any user of the GPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from everyrank.devices.cuda import made_up
from everyrank.devices.protocol import Gpu
from everyrank.errors import MisuseError
from everyrank.resources.gpus import gpu_leases
from everyrank.resources.gpus.gpu_leases import GpuLease, GpuLeases
from everyrank.resources.gpus.needs import Needs

SPAWN = multiprocessing.get_context("spawn")
FOUR = made_up("4")
ONE, TWO, ALL = Needs(1, 1), Needs(2, 2), Needs(4, 4)
HALF, THIRD = Needs(1, 1, share=0.5), Needs(1, 1, share=1 / 3)


def leases(folder: Path) -> GpuLeases:
    return GpuLeases(folder, print)


def take(folder: Path, needs: Needs, machine: tuple[Gpu, ...] = FOUR) -> GpuLease:
    lease = leases(folder).take(needs, machine)
    assert lease is not None
    return lease


def can_take(folder: Path, needs: Needs, machine: tuple[Gpu, ...] = FOUR) -> bool:
    """Return whether a lease can be taken without waiting."""
    taken = leases(folder)._try(needs, needs.suitable(machine))
    for file in taken[1] if taken else ():
        file.close()
    return taken is not None


def names(lease: GpuLease) -> list[str]:
    return [gpu.uuid for gpu in lease.gpus]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gpu_leases.prepare(tmp_path / "leases")
    return tmp_path / "leases"


def test_two_worlds_never_have_the_same_gpu(folder: Path) -> None:
    held = [take(folder, ONE) for _ in range(4)]
    assert sorted(name for lease in held for name in names(lease)) == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert not can_take(folder, ONE)
    held[2].close()
    assert names(take(folder, ONE)) == ["GPU-2"]


def test_a_world_that_needs_no_gpu_gets_none(folder: Path) -> None:
    assert leases(folder).take(Needs(), FOUR) is None
    assert leases(folder).take(Needs(0, 2), ()) is None


def test_a_world_that_takes_any_gpus_gets_those_that_exist(folder: Path) -> None:
    assert names(take(folder, Needs(0, 8))) == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]


def test_a_half_shares_only_with_halves(folder: Path) -> None:
    single = FOUR[:1]
    first = take(folder, HALF, single)
    assert can_take(folder, HALF, single)
    assert not can_take(folder, ONE, single)
    second = take(folder, HALF, single)
    assert names(first) == names(second) == ["GPU-0"]
    assert not can_take(folder, Needs(1, 1, share=0.1), single)
    first.close()
    assert not can_take(folder, ONE, single)
    second.close()
    assert can_take(folder, ONE, single)


def test_three_thirds_are_one_gpu(folder: Path) -> None:
    held = [take(folder, THIRD, FOUR[:1]) for _ in range(3)]
    assert not can_take(folder, Needs(1, 1, share=0.01), FOUR[:1])
    assert len(held) == 3


def test_a_share_goes_to_a_gpu_that_others_share(folder: Path) -> None:
    """Whole GPUs stay free for tests that need one."""
    alone = take(folder, ONE)
    first, second = take(folder, HALF), take(folder, HALF)
    assert names(alone) == ["GPU-0"]
    assert names(first) == names(second) == ["GPU-1"]
    assert names(take(folder, HALF)) == ["GPU-2"]


def test_a_world_gets_gpus_that_suit_it(folder: Path) -> None:
    machine = (Gpu("GPU-a", memory=10), Gpu("GPU-b", memory=40, capability=(8, 0)), Gpu("GPU-c", memory=80))
    assert names(take(folder, Needs(1, 1, memory=30), machine)) == ["GPU-b"]
    assert names(take(folder, Needs(1, 1, memory=30), machine)) == ["GPU-c"]
    assert not can_take(folder, Needs(1, 1, memory=30), machine)
    assert can_take(folder, ONE, machine)
    with pytest.raises(MisuseError, match="do not meet"):
        take(folder, Needs(1, 1, capability=(9, 0)), machine)


def test_peers_are_taken_together(folder: Path) -> None:
    pairs = (("GPU-a", "GPU-d"), ("GPU-b", "GPU-c"))
    peers = {gpu: peer for pair in pairs for gpu, peer in (pair, pair[::-1])}
    machine = tuple(Gpu(uuid, peers=frozenset({peers[uuid]})) for uuid in sorted(peers))
    linked = Needs(2, 2, p2p=True)
    first = take(folder, linked, machine)
    assert names(first) == ["GPU-a", "GPU-d"]
    assert names(take(folder, linked, machine)) == ["GPU-b", "GPU-c"]
    first.close()
    take(folder, ONE, machine)
    assert not can_take(folder, linked, machine)


def test_ranks_see_their_worlds_gpus(folder: Path) -> None:
    lease = take(folder, TWO)
    assert [lease.visible_to(rank) for rank in range(3)] == [{"cuda": "GPU-0,GPU-1"}] * 3
    assert [lease.device(rank) for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]


def test_a_rank_sees_one_instance_since_cuda_takes_no_more(folder: Path) -> None:
    lease = take(folder, TWO, (Gpu("MIG-x"), Gpu("MIG-y")))
    assert [lease.visible_to(rank) for rank in range(3)] == [{"cuda": uuid} for uuid in ("MIG-x", "MIG-y", "MIG-x")]
    assert [lease.device(rank) for rank in range(3)] == ["cuda:0"] * 3


# --- other processes -------------------------------------------------------------------------------


def _hold(folder: Path, needs: Needs, pipe: Connection) -> None:
    """Take GPUs in another process, report them, and hold them until a message comes."""
    lease = take(folder, needs)
    pipe.send(names(lease))
    pipe.recv()


def _take_turns(folder: Path, needs: Needs, times: int, log: str) -> None:
    """Note in another process when each GPU is taken and released."""
    mine = leases(folder)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for _ in range(times):
        lease = mine.take(needs, FOUR)
        assert lease is not None
        os.write(fd, "".join(f"+{name} " for name in names(lease)).encode())
        os.write(fd, "".join(f"-{name} " for name in names(lease)).encode())
        lease.close()
    os.close(fd)


class Holder:
    def __init__(self, folder: Path, needs: Needs) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_hold, args=(folder, needs, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.gpus = self.pipe.recv()

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()


def test_crowds_of_every_need_share_nothing_and_all_come_to_an_end(folder: Path, tmp_path: Path) -> None:
    """Two processes that each held half of what both need would wait for ever."""
    log = tmp_path / "log"
    wants = (TWO, Needs(3, 3), ALL, ONE)
    crowd = [SPAWN.Process(target=_take_turns, args=(folder, needs, 25, str(log))) for needs in wants]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join()
    assert [process.exitcode for process in crowd] == [0] * 4
    held: set[str] = set()
    for word in log.read_text().split():
        if word[0] == "+":
            assert word[1:] not in held
            held.add(word[1:])
        else:
            held.remove(word[1:])
    assert not held


def test_who_waits_for_other_gpus_is_not_waited_for(folder: Path) -> None:
    """Two runs with different GPUs in CUDA_VISIBLE_DEVICES do not wait for each other."""
    busy = take(folder, ONE, FOUR[:1])
    waiting = threading.Thread(target=lambda: take(folder, ONE, FOUR[:1]).close())
    waiting.start()
    _until_somebody_waits(folder, "GPU-0")
    assert names(take(folder, ONE, FOUR[1:2])) == ["GPU-1"]
    busy.close()
    waiting.join()


def _until_somebody_waits(folder: Path, uuid: str) -> None:
    turnstile = gpu_leases.LockFile(folder / f"turnstile-{uuid}")
    while turnstile.take():
        turnstile.close()
        os.sched_yield()
    turnstile.close()


def test_a_killed_holder_frees_its_gpus(folder: Path) -> None:
    holder = Holder(folder, ALL)
    assert len(holder.gpus) == 4
    assert not can_take(folder, ONE)
    holder.kill()
    assert can_take(folder, ALL)


def test_a_lease_lives_as_long_as_a_process_that_inherited_it(folder: Path) -> None:
    """A rank, or what it forked, may still use the GPU when the controller has released it."""
    lease = take(folder, ONE, FOUR[:1])
    heir = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=lease.fds
    )
    lease.close()
    assert not can_take(folder, ONE, FOUR[:1])
    heir.communicate()
    assert can_take(folder, ONE, FOUR[:1])


def test_a_warm_world_lets_go_when_somebody_has_waited_long_enough(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = take(folder, ONE, FOUR[:1])
    assert not lease.is_overdue()
    monkeypatch.setattr(gpu_leases, "QUANTUM", 0.0)
    assert not lease.is_overdue()
    waiting = threading.Thread(target=lambda: take(folder, ONE, FOUR[:1]).close())
    waiting.start()
    _until_somebody_waits(folder, "GPU-0")
    assert lease.is_overdue()
    monkeypatch.setattr(gpu_leases, "QUANTUM", time.monotonic())
    assert not lease.is_overdue()
    lease.close()
    waiting.join()


def test_a_long_wait_is_reported_with_the_holders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_leases, "_PATIENCE", 0.0)
    held = take(folder, ALL)
    reported: list[str] = []
    heard = threading.Event()

    def hear(text: str) -> None:
        reported.append(text)
        heard.set()

    waiting = threading.Thread(target=lambda: GpuLeases(folder, hear).take(TWO, FOUR))
    waiting.start()
    heard.wait()
    held.close()
    waiting.join()
    assert reported == [f"a world waits for 2 of 4 GPUs, which pytest processes {os.getpid()} use"]


def test_no_file_is_left_of_what_nobody_holds(folder: Path) -> None:
    mine, yours = leases(folder), leases(folder)
    first, second = mine.take(ONE, FOUR), yours.take(HALF, FOUR)
    assert first is not None
    assert second is not None
    first.close()
    mine.close()
    assert [path.name for path in folder.glob("gpu-GPU-0")] == []
    assert (folder / "gpu-GPU-1").exists()
    second.close()
    yours.close()
    assert not folder.exists()


def test_a_folder_that_was_removed_meanwhile_is_made_again(folder: Path) -> None:
    mine = leases(folder)
    folder.rmdir()
    assert mine.take(ONE, FOUR) is not None
