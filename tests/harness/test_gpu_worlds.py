"""Tests that need GPUs, on a machine with made-up GPUs: which run, which are skipped, which GPUs ranks see."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from typing import Any

import pytest

from tests.engines import elsewhere
from tests.inner import Inner, Project

SOURCE = """
    import os
    import pytest

    SEEN = os.environ["EVERYRANK_TEST_SEEN"]

    def note(world):
        with open(SEEN, "a") as file:
            file.write(f"{os.environ['PYTEST_CURRENT_TEST'].split('::')[-1].split(' ')[0]} {world.rank} "
                       f"{os.environ['CUDA_VISIBLE_DEVICES'] or 'none'} {world.device} {os.getpid()}\\n")

    @pytest.mark.world(2, gpus=2)
    def test_two(world): note(world)

    @pytest.mark.world(2, gpus=2)
    def test_two_again(world): note(world)

    @pytest.mark.world(2)
    def test_before_half(world): pass

    @pytest.mark.world(2, gpus=0.5)
    def test_half(world): note(world)

    @pytest.mark.world(2, device="cuda")
    def test_one_a_rank(world): note(world)

    @pytest.mark.world(2)
    def test_before_half_on_gloo(world): pass

    @pytest.mark.world(2, gpus=0.5, device="cuda", backend="gloo")
    def test_half_on_gloo(world): assert world.backend == "gloo"; note(world)

    @pytest.mark.world(2)
    def test_cpu(world): note(world)

    @pytest.mark.world(4, gpus=4)
    def test_four(world): note(world)

    @pytest.mark.world(2, gpu_memory="40GB")
    def test_memory(world): note(world)

    @pytest.mark.world(2, gpus=1, capability=(9, 0))
    def test_capability(world): note(world)

    @pytest.mark.world(2, p2p=True)
    def test_peers(world): note(world)

    @pytest.mark.world(2, backend="nccl")
    def test_nccl(world): note(world)

    class TestOfTorchsStyle:
        everyrank_world = True
        world_size = 2
        def test_takes_what_there_is(self, world): note(world)
"""

#: A rank that is still ending holds its GPUs, and half a GPU is taken from any that is free. So the test before needs
#: none, and this waits until the ranks that had some have gone.
GPUS_ARE_FREE = """
    import os, time

    controller = os.getpid()

    def pytest_runtest_logstart(nodeid):
        if os.getpid() != controller or "::test_half" not in nodeid:
            return
        with open(os.environ["EVERYRANK_TEST_SEEN"]) as seen:
            had_gpus = [line.split()[-1] for line in seen if line.split()[2] != "none"]
        while any(os.path.exists(f"/proc/{pid}") for pid in had_gpus):
            time.sleep(0.01)
"""

GPUS = json.dumps(
    [
        {"uuid": "GPU-a", "memory": "80GB", "capability": [8, 0]},
        {"uuid": "GPU-b", "memory": "24GB", "capability": [8, 9]},
        {"uuid": "GPU-c", "memory": "80GB", "capability": [8, 0]},
    ]
)


def run(project: Project, *arguments: str, **environment: str) -> tuple[Inner, dict[str, list[list[str]]]]:
    """Return the run, and what each rank saw: test -> [rank, GPUs, device, pid]."""
    seen = project.folder / "seen"
    seen.write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in {"EVERYRANK_DEVICES": GPUS, "EVERYRANK_TEST_SEEN": str(seen), **environment}.items():
            patch.setenv(name, value)
        inner = project.run(*arguments)
    lines: dict[str, list[list[str]]] = {}
    for line in sorted(seen.read_text().splitlines()):
        test, *rest = line.split()
        lines.setdefault(test, []).append(rest)
    return inner, lines


@pytest.fixture(scope="module")
def ran(module_project: Project) -> tuple[Inner, dict[str, list[list[str]]]]:
    module_project.write("test_inner.py", SOURCE)
    module_project.write("conftest.py", GPUS_ARE_FREE)
    return run(module_project, CUDA_VISIBLE_DEVICES="2,1")


#: test -> what each of its two ranks sees, and its device.
SEEN = {
    "test_two": [("GPU-c,GPU-b", "cuda:0"), ("GPU-c,GPU-b", "cuda:1")],
    "test_two_again": [("GPU-c,GPU-b", "cuda:0"), ("GPU-c,GPU-b", "cuda:1")],
    "test_half": [("GPU-c", "cuda:0"), ("GPU-c", "cuda:0")],
    "test_half_on_gloo": [("GPU-c", "cuda:0"), ("GPU-c", "cuda:0")],
    "test_one_a_rank": [("GPU-c,GPU-b", "cuda:0"), ("GPU-c,GPU-b", "cuda:1")],
    "test_memory": [("GPU-c", "cuda:0"), ("GPU-c", "cuda:0")],
    "test_cpu": [("none", "cpu"), ("none", "cpu")],
    "test_takes_what_there_is": [("GPU-c,GPU-b", "cpu"), ("GPU-c,GPU-b", "cpu")],
}


@pytest.mark.parametrize("test", SEEN)
def test_ranks_see_the_gpus_of_their_world_and_no_other(ran: Any, test: str) -> None:
    inner, seen = ran
    assert inner[test].outcome == "passed"
    assert [(gpus, device) for _, gpus, device, _ in seen[test]] == SEEN[test]


def test_gpus_stay_with_a_warm_world_for_the_next_test_of_its_kind(ran: Any) -> None:
    _, seen = ran
    assert [pid for *_, pid in seen["test_two"]] == [pid for *_, pid in seen["test_two_again"]]


#: test -> what it needs that is not here.
MISSING = {
    "test_four": "needs 4 GPUs, found 2",
    "test_capability": "needs 1 GPU of compute capability 9.0 or more, found 0 among 2",
    "test_peers": "needs 2 GPUs that reach each other (P2P), found no such set among 2",
    "test_nccl": "needs the backend nccl, which this torch does not have",
}


@pytest.mark.parametrize("test", MISSING)
def test_a_need_that_is_not_met_is_a_skip_with_its_reason(ran: Any, test: str) -> None:
    inner, _ = ran
    if test == "test_nccl" and inner[test].outcome == "passed":
        pytest.skip("this torch has NCCL")
    assert inner[test].outcome == "skipped"
    assert MISSING[test] in inner[test].text


def test_a_line_at_the_end_counts_what_was_skipped_for_what(ran: Any) -> None:
    inner, _ = ran
    line = next(line for line in inner.out.splitlines() if line.startswith("everyrank skipped "))
    for reason in MISSING.values():
        if "nccl" not in reason:
            assert f"1 ({reason})" in line


# --- a nightly run that must not be green without its GPUs -----------------------------------------


def test_what_is_skipped_for_want_of_gpus_fails_where_they_are_required(module_project: Project) -> None:
    module_project.write("test_inner.py", SOURCE)
    inner, _ = run(module_project, "--require-gpus=3", "-k", "capability or peers or four or cpu or memory")
    assert inner.code == 1
    outcomes = {test.split("[")[0]: outcome for test, outcome in inner.outcomes().items()}
    assert outcomes == {
        "test_cpu": "passed",
        "test_memory": "passed",
        "test_four": "skipped",  # more than the machine is said to have
        "test_capability": "error",
        "test_peers": "error",
    }
    assert "found 0 among 3; with --require-gpus=3 this is not a skip" in inner["test_capability"].text


def test_a_machine_with_fewer_gpus_than_required_is_never_green(project: Project) -> None:
    """The same holds if only the user's own skipif has noticed."""
    skips = "import pytest\n@pytest.mark.skip(reason='x')\ndef test_skips(world): ...\n"
    project.write("test_inner.py", f"{skips}def test_x(): ...\n")
    inner, _ = run(project, "--require-gpus=4")
    assert inner.code == 1
    assert "everyrank: --require-gpus=4, found 3: this run is not green" in inner.out
    assert "everyrank skipped" not in inner.out  # nothing was, for want of GPUs
    assert run(project, "--require-gpus=3")[0].code == 0
    assert run(project, "--require-gpus=4", "--collect-only")[0].code == 0


# --- leases ----------------------------------------------------------------------------------------

EXCLUSIVE = """
    import os
    import pytest

    @pytest.mark.world(2, gpus=2)
    @pytest.mark.parametrize("n", range(6))
    def test_two(world, n):
        if world.rank == 0:
            for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
                os.mkdir(os.path.join(os.environ["EVERYRANK_TEST_SEEN"] + gpu))  # fails where it is in use
            for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
                os.rmdir(os.path.join(os.environ["EVERYRANK_TEST_SEEN"] + gpu))

    @pytest.mark.world(1, gpus=9)
    @pytest.mark.parametrize("n", range(3))
    def test_nine(world, n): ...
"""


def test_workers_share_no_gpu_and_none_waits_for_ever(project: Project) -> None:
    """Two workers, three GPUs, two each: one at a time."""
    project.write("test_inner.py", EXCLUSIVE)
    inner, _ = run(project, "-n", "2", "--fresh-worlds")
    ends = Counter(name.partition("[")[0] + " " + outcome for name, outcome in inner.outcomes().items())
    assert ends == {"test_two passed": 6, "test_nine skipped": 3}
    assert "everyrank skipped 3 tests: 3 (needs 9 GPUs, found 3)" in inner.out
    assert list((project.folder / "leases").iterdir()) == []


def test_a_lease_outlives_a_killed_pytest_as_long_as_its_ranks(project: Project) -> None:
    """Its ranks die after a SIGKILL of the controller, and the GPU is free then, neither earlier nor never."""
    project.write(
        "test_inner.py",
        """
        import os, pytest

        @pytest.mark.world(1, gpus=3)
        def test_waits(world):
            with open(os.environ["EVERYRANK_TEST_SEEN"], "w") as file:
                file.write("here")
            world.all_agree(os.read(os.pipe()[0], 1))
        """,
    )
    seen = project.folder / "seen"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.setenv("EVERYRANK_DEVICES", GPUS)
        patch.setenv("EVERYRANK_TEST_SEEN", str(seen))
        process = project.start()
        until = time.monotonic() + 120
        while not (seen.exists() and seen.read_text() == "here"):
            assert time.monotonic() < until
            os.sched_yield()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        project.write("test_inner.py", "import pytest\n@pytest.mark.world(1, gpus=3)\ndef test_next(world): ...\n")
        assert project.run()["test_next"].outcome == "passed"


def test_what_a_rank_left_running_keeps_the_gpus_until_it_is_gone(project: Project) -> None:
    """The keeper ends a daemon of a rank, and the next world starts only then."""
    project.write(
        "test_inner.py",
        """
        import os, subprocess, sys
        import pytest

        DAEMON = "import os, sys; print('up', flush=True); sys.stdin.read()"

        @pytest.mark.world(1, gpus=3)
        def test_leaves_a_daemon(world):
            pipe = os.pipe()
            daemon = subprocess.Popen(
                [sys.executable, "-c", DAEMON], start_new_session=True, stdin=pipe[0], stdout=subprocess.PIPE
            )
            assert daemon.stdout.readline() == b"up\\n"
            os.set_inheritable(pipe[1], True)
            with open(os.environ["EVERYRANK_TEST_SEEN"], "w") as file:
                file.write(str(daemon.pid))

        @pytest.mark.world(2, gpus=3)
        def test_next(world):
            with open(os.environ["EVERYRANK_TEST_SEEN"]) as file:
                pid = file.read()
            assert not os.path.exists(f"/proc/{pid}")
        """,
    )
    inner, _ = run(project, "-k", "daemon or next")
    assert inner["test_next"].outcome == "passed"


@pytest.mark.parametrize("launcher", ["fork", elsewhere("spawn")])
def test_a_rank_sees_its_gpus_before_its_file_is_imported(project: Project, launcher: str) -> None:
    """A clean interpreter imports the file; one that initialises CUDA there must get the right GPUs."""
    project.write(
        "test_inner.py",
        """
        import os, sys
        import pytest

        AT_IMPORT = os.environ["CUDA_VISIBLE_DEVICES"]

        @pytest.mark.world(1, gpus=1)
        def test_seen(world, pytestconfig):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"
            spawned = pytestconfig.option.launcher == "spawn"
            assert AT_IMPORT == ("GPU-b" if spawned else "1,0")
        """,
    )
    inner, _ = run(project, f"--launcher={launcher}", CUDA_VISIBLE_DEVICES="1,0")
    assert inner["test_seen"].outcome == "passed"
