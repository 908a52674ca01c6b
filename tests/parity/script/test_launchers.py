"""`everyrank parity --launcher NAME`: a launcher of worlds starts the ranks, also on hosts that share nothing."""

from __future__ import annotations

import contextlib
import pickle
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from everyrank.launch.rendezvous import reserved_port
from everyrank.parity.script.launched import Agent, Ended

from tests.harness.test_ray import TwoNodes
from tests.inner import outer_environment
from tests.parity.script.test_bad_use import TRAINS
from tests.parity.script.test_faults import printed

pytestmark = pytest.mark.group("clusters")

STEP = "    optimizer.step()\n"
TWICE = TRAINS.replace("/= size", "/= size * size")


def parity(folder: Path, script: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Return the exit code of the command in a process of its own, its first line, and all that it prints."""
    (folder / "train.py").write_text(script)
    environment = {**outer_environment(), "TMPDIR": str(folder), **variables}
    ended = subprocess.run(
        [sys.executable, "-m", "everyrank", "parity", *arguments, "train.py"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    text = (ended.stderr + ended.stdout).removeprefix("everyrank parity: ").removeprefix("train.py, ")
    return ended.returncode, text.partition("\n")[0], text


@pytest.mark.parametrize(
    ("script", "code", "first"),
    [
        (TRAINS, 0, "2 ranks and one rank: the same training, in 3 steps (20 tensors compared)"),
        (
            TRAINS.replace(STEP, f"{STEP}    if rank == 1: dist.barrier()\n"),
            2,
            "2 ranks: rank 0 waits in its 3rd collective, all_reduce at train.py:15; rank 1 in its 3rd, barrier at "
            "train.py:18",
        ),
        (
            TRAINS.replace(STEP, f"    if rank: raise ValueError(rank)\n{STEP}"),
            2,
            "2 ranks: rank 1 of 2 failed first, in the script",
        ),
    ],
    ids=["is right", "hangs", "fails"],
)
def test_the_verdict_is_the_same_under_a_launcher(script: str, code: int, first: str, tmp_path: Path) -> None:
    assert parity(tmp_path, script, "--launcher", "fork")[:2] == (code, first)


def test_ranks_on_two_hosts_of_ray(tmp_path: Path) -> None:
    """One host does not see the folder in which records are kept: they come back with the ranks."""
    kept = tmp_path / "kept"
    kept.mkdir()
    with contextlib.closing(TwoNodes(kept)) as cluster:
        by_ray = ("--launcher", "ray", "--keep", str(kept), "--ranks")
        variables = {"RAY_ADDRESS": cluster.address, "RAY_AUTH_MODE": "disabled"}
        code, line, text = parity(tmp_path, TRAINS, *by_ray, "5,1", **variables)
        assert (code, line) == (
            2,
            "--launcher: ray cannot start 5 ranks: needs 5 ranks, the Ray cluster has 4 CPUs",
        ), text
        code, line, text = parity(tmp_path, TWICE, *by_ray, "1,4", **variables)
    assert (code, line) == (
        1,
        "4 ranks and one rank: step 1: gradient of `weight` is 1/4 of one rank's on ranks 0, 1, 2 and 3: the number "
        "of ranks (train.py:17), as 1 other of its kind",
    ), text
    assert {path.name for path in (kept / "ranks-4").glob("*.log")} == {f"rank-{rank}.log" for rank in range(4)}


#: What the first rank of a host does, in a process of its own.
AGENT = "import pickle, sys; agent = pickle.load(sys.stdin.buffer); pickle.dump(agent(), sys.stdout.buffer)"


@pytest.mark.parametrize(
    ("instead", "trouble"),
    [
        ("    if rank == 3: raise ValueError(rank)", "train.py on 4 ranks: rank 3 of 4 failed first, in the script"),
        ("    if rank == 3: import time; time.sleep(3600)", ""),
    ],
    ids=["fails", "hangs"],
)
def test_of_two_hosts_the_one_in_trouble_first_is_named(instead: str, trouble: str, tmp_path: Path) -> None:
    """Neither host calls the other's ranks dead or ended."""
    (tmp_path / "train.py").write_text(TRAINS.replace(STEP, f"{instead}\n{STEP}"))
    limit = 30.0 if trouble else 20.0
    agent = Agent(4, "train.py", ("train.py",), 3, (), limit, tmp_path, "other", str(tmp_path))

    def host(number: int) -> Ended:
        shared = {"MASTER_ADDR": address, "MASTER_PORT": port, "GROUP_WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        own = {"RANK": 2 * number, "LOCAL_RANK": 0, "GROUP_RANK": number, **shared}
        variables = {**outer_environment(), **{name: str(value) for name, value in own.items()}}
        command = [sys.executable, "-c", AGENT]
        found = subprocess.run(command, input=pickle.dumps(agent), env=variables, stdout=subprocess.PIPE, check=True)
        ended: Ended = pickle.loads(found.stdout)
        return ended

    with reserved_port() as (address, port), ThreadPoolExecutor() as threads:
        ended = [*threads.map(host, range(2))]
    first = min(ended, key=lambda each: not each.is_first)
    assert first.trouble.partition("\n")[0] == trouble, ended
    assert any(each.late for each in ended) is not bool(trouble)
    assert {name for each in ended for name in each.files if name.endswith(".log")} == {
        f"rank-{rank}.log" for rank in range(4)
    }


@pytest.mark.parametrize("lacks", ["none", "train.py"])
def test_a_host_that_lacks_the_script_is_named(lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    for name, value in {"MASTER_ADDR": "127.0.0.1", "GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    missing = tmp_path / lacks
    folder = missing if lacks == "none" else tmp_path
    ended = Agent(2, "train.py", ("train.py",), 3, (), 1.0, tmp_path, "", str(folder))()
    assert ended is not None
    host = f"train.py: the host {socket.gethostname()}"
    assert ended.trouble == f"{host} has no {missing}: give the command where all hosts have the script"


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--launcher", "none"],
            "--launcher: must be one of fork, spawn, torchrun, ray, not 'none'",
        ),
        (
            ["--launcher", "torchrun"],
            "--launcher: without this option ranks are started as torchrun starts them: leave it out, or name ray",
        ),
        (
            ["--launcher", "fork", "--compare", "one", "two"],
            "--launcher starts a script, and no script is run by --compare",
        ),
    ],
)
def test_a_launcher_that_has_no_ranks_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAINS)
    script = [] if "--compare" in arguments else ["train.py"]
    assert printed(*arguments, *script) == (2, f"everyrank parity: {sentence}\n")
