"""The launcher ray: one pytest, and its ranks on the nodes of a cluster. Here two nodes run on loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import on_hosts
from tests.inner import Inner, Project, outer_environment

# Each worker of the tests collects this file: the import itself would cost it more than all other of ours.
if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install ray", allow_module_level=True)
pytestmark = pytest.mark.group("clusters")


class TwoNodes:
    """A cluster in a process of its own."""

    def __init__(self, *hidden: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.ray_cluster", *map(str, hidden)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=outer_environment(),
        )  # fmt: skip
        self.address = self._answer("address")
        self._temp = Path(self._answer("temp"))

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def folders_left(self) -> list[str]:
        """Return what runs have left in the temp folder of the node apart."""
        return [path.name for path in self._temp.iterdir() if path.name.startswith("everyrank-")]

    def _answer(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError("the cluster has ended")


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    with contextlib.closing(TwoNodes()) as made:
        yield made


@pytest.fixture
def own_cluster() -> Iterator[TwoNodes]:
    with contextlib.closing(TwoNodes()) as made:
        yield made


def run(project: Project, cluster: TwoNodes, *arguments: str) -> Inner:
    return project.run("--launcher=ray", f"--ray-address={cluster.address}", *arguments)


SOURCE = """
    import json, os, pathlib, sys
    import pytest, torch
    import torch.distributed as dist

    def note(name, **facts):
        with open(pathlib.Path(__file__).with_name(name), "a") as file:
            file.write(json.dumps(facts) + "\\n")

    @pytest.mark.world(4)
    def test_first(world, process_group):
        print(f"hello from {world.rank}", flush=True)
        note("first", pid=os.getpid(), rank=world.rank, host=os.environ["GROUP_RANK"])
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4

    @pytest.mark.world(4)
    def test_second(world, process_group):
        note("second", pid=os.getpid(), rank=world.rank)

    @pytest.mark.world(2)
    def test_fails_on_one(world):
        assert world.rank == 0

    def test_single():
        pass

    @pytest.mark.world(5)
    def test_too_large(world):
        pass
"""


def noted(project: Project, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (project.folder / name).read_text().splitlines()]
    return sorted(lines, key=lambda line: line["rank"])


def test_a_world_spans_nodes_and_stays_warm(project: Project, cluster: TwoNodes) -> None:
    project.write("test_inner.py", SOURCE)
    inner = run(project, cluster, "-s")
    assert inner.outcomes() == {
        "test_first": "passed",
        "test_second": "passed",
        "test_fails_on_one": "failed",
        "test_single": "passed",
        "test_too_large": "skipped",
    }, inner.out
    assert inner.code == 1
    assert "rank 1 of 2 failed first, in call" in inner["test_fails_on_one"].text
    assert "needs 5 ranks, the Ray cluster has 4 CPUs" in inner.out
    first = noted(project, "first")
    assert len({line["host"] for line in first}) == 2
    assert [line["pid"] for line in first] == [line["pid"] for line in noted(project, "second")]
    for rank in range(4):
        assert f"[rank {rank}] hello from {rank}" in inner.out


LOSES = """
    import os, signal
    import pytest

    @pytest.mark.world(4, timeout=100)
    def test_loses_a_node(world):
        world.barrier()
        if world.rank == 3:
            os.kill(int(os.environ["RAY_RAYLET_PID"]), signal.SIGKILL)  # as a power cut does
            while True:
                signal.pause()
        world.barrier()

    @pytest.mark.world(2)
    def test_runs_on_the_other(world):
        world.all_agree(1)
"""


def test_a_node_that_dies_fails_its_test_and_the_run_goes_on(project: Project, own_cluster: TwoNodes) -> None:
    project.write("test_inner.py", LOSES)
    inner = run(project, own_cluster)
    assert inner.outcomes() == {"test_loses_a_node": "failed", "test_runs_on_the_other": "passed"}, inner.out
    text = inner["test_loses_a_node"].text
    assert re.search(r"lost: Ray's actor \d on \S+ \(node \w{8}\) is gone", text), text


QUEUE = """
    import os, time
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.parametrize("case", range(6))
    @pytest.mark.parametrize("size", [pytest.param(size, marks=pytest.mark.world(size)) for size in (3, 4)])
    def test_sum(world, process_group, size, case):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == size

    @pytest.mark.parametrize("case", range(4))
    def test_single(case):
        time.sleep(1)
"""


def test_workers_take_turns_with_the_cluster(project: Project, cluster: TwoNodes) -> None:
    # Two worlds never fit, so each worker must give its actors back while it has tests left.
    project.write("test_inner.py", QUEUE)
    inner = run(
        project, cluster, "-n2", "--dist=loadgroup", "--require-gpus=3"
    )  # as the nodes have, and not this host
    assert sorted(inner.outcomes().values()) == ["passed"] * 16, inner.out
    assert inner.code == 0


SPREAD = """
    import os
    import pytest

    @pytest.mark.world(2)
    def test_together(world):
        world.all_agree(os.environ["GROUP_WORLD_SIZE"])

    @pytest.mark.world(2, spread=True)
    def test_spread(world, process_group):
        assert os.environ["GROUP_RANK"] == str(world.rank)
        assert os.environ["GROUP_WORLD_SIZE"] == "2"
        assert os.environ["LOCAL_RANK"] == "0"

    @pytest.mark.world(3, spread=True)
    def test_spread_too_far(world):
        pass
"""


def test_spread_puts_ranks_on_different_nodes(project: Project, cluster: TwoNodes) -> None:
    project.write("test_inner.py", SPREAD)
    inner = run(project, cluster)
    assert inner.outcomes() == {
        "test_together": "passed", "test_spread": "passed", "test_spread_too_far": "skipped"
    }, inner.out  # fmt: skip
    assert "needs 3 hosts, the Ray cluster has 2 with CPUs" in inner.out


def test_ranks_get_gpus_of_their_nodes(project: Project, cluster: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("test_inner.py", on_hosts.GPUS)
    monkeypatch.setenv("EVERYRANK_DEVICES", "4")  # what each node finds, of which Ray gives it some
    inner = run(project, cluster, "--require-gpus=3")
    assert inner.outcomes() == {
        "test_three": "passed", "test_three_again": "passed", "test_none": "passed", "test_apart": "passed",
        "test_four": "skipped", "test_one_for_two": "error", "test_large": "error",
    }, inner.out  # fmt: skip
    three = noted(project, "three")
    assert sorted((line["seen"], line["device"]) for line in three) == [
        ("GPU-0", "cuda:0"), ("GPU-0,GPU-1", "cuda:0"), ("GPU-0,GPU-1", "cuda:1")
    ]  # fmt: skip
    assert [line["pid"] for line in noted(project, "again")] == [line["pid"] for line in three]
    assert [(line["seen"], line["device"]) for line in noted(project, "none")] == [("", "cpu")] * 2
    assert [line["device"] for line in noted(project, "apart")] == ["cuda:0"] * 2
    assert "needs 4 GPUs, the Ray cluster has 3" in inner.out
    assert "needs 1 GPU, and on several hosts ray has one for each rank" in inner["test_one_for_two"].text
    assert "with --require-gpus=3 this is not a skip" in inner["test_large"].text
    assert "--require-gpus" not in inner.out.splitlines()[-1]


def test_a_gpu_that_torch_does_not_find_is_an_error(project: Project, cluster: TwoNodes) -> None:
    project.write(
        "test_inner.py", "import pytest\n\n@pytest.mark.world(2, gpus=2, backend='gloo')\ndef test_it(): ...\n"
    )
    inner = run(project, cluster)
    assert inner.outcomes() == {"test_it": "error"}, inner.out
    assert "cannot use the GPU that Ray gave to it: its torch finds none" in inner["test_it"].text


# --- hosts that share no folder ------------------------------------------------------------------------------


def test_ray_copies_the_tests_to_hosts_that_do_not_have_them(project: Project) -> None:
    project.write("tests/helper.py", "WORLD = 4\n")
    project.write("tests/test_inner.py", on_hosts.APART)
    project.write("pytest.ini", "[pytest]\naddopts = --import-mode=prepend\n")
    with apart(project.folder) as cluster:
        refused = run(project, cluster)
        assert refused.code == pytest.ExitCode.USAGE_ERROR
        expected = (
            r"has other test files than this process: tests/test_inner.py is not there; .* --ray-working-dir=FOLDER"
        )
        assert re.search(expected, refused.out), refused.out
        inner = run(project, cluster, "--ray-working-dir=.", "--cov=tests")
        assert inner.outcomes() == on_hosts.OUTCOMES, inner.out
        unmeasured = "everyrank: the coverage of ranks is not measured: they do not see this host's files"
        assert [warning["text"] for warning in inner.warnings].count(unmeasured) == 1
        assert "the hosts of this world share no folder. Set TMPDIR" in inner["test_folder"].text
        # A failure has the names of the user's files, not those of copies.
        assert "tests/test_inner.py:" in inner["test_folder"].text
        assert "working_dir_files" not in inner.out
        assert not cluster.folders_left()


@contextlib.contextmanager
def apart(hidden: Path) -> Iterator[TwoNodes]:
    """Yield a cluster to whose second node this folder is empty."""
    on_hosts.apart_from(hidden)  # it may skip
    with contextlib.closing(TwoNodes(hidden)) as made:
        yield made


# --- bad use -------------------------------------------------------------------------------------------------

ONE = "import pytest\n\n@pytest.mark.world(2)\ndef test_one(world):\n    pass\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-n2"], "--launcher=ray: with -n, all workers use one cluster: name it by --ray-address or RAY_ADDRESS"),
        (["--pdb"], "--launcher=ray: a debugger needs the ranks on this host: use --launcher=fork"),
        (["--ray-address=127.0.0.2:1"], "--launcher=ray: cannot connect to the Ray cluster at 127.0.0.2:1"),
        (["--ray-working-dir=none"], "--ray-working-dir: there is no folder "),
        (["--ray-working-dir=tmp"], "/tmp does not contain pytest's rootdir "),
    ],
    ids=["xdist", "debugger", "unreachable", "no folder", "another folder"],
)
def test_bad_use_ends_before_the_first_test(project: Project, arguments: list[str], expected: str) -> None:
    project.write("test_inner.py", ONE)
    inner = project.run("--launcher=ray", *arguments)
    assert inner.code == pytest.ExitCode.USAGE_ERROR
    assert inner.tests == {}
    assert expected in inner.out


def run_with_own_mounts(project: Project, cluster: TwoNodes, mount: str, temp: Path) -> str:
    """Run pytest with a mount that it alone sees, as on a host of its own. Return the error that ends it."""
    run_pytest = shlex.join(project.command("--launcher=ray", f"--ray-address={cluster.address}"))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{mount} && cd {project.folder} && exec {run_pytest}"],
        env={**project.environment(), "TMPDIR": str(temp), "RAY_TMPDIR": "/tmp/ray"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine allows no mounts of one's own: {done.stderr}")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "passed" not in done.stdout
    return done.stderr


def test_other_files_on_a_node_are_an_error_before_the_first_test(project: Project, cluster: TwoNodes) -> None:
    project.write("test_inner.py", ONE)
    copy, temp = project.folder.with_name("copy"), project.folder.with_name("shared-temp")
    shutil.copytree(project.folder, copy)
    temp.mkdir()
    (copy / "test_inner.py").write_text("# changed\n" + ONE)
    error = run_with_own_mounts(project, cluster, f"mount --bind {copy} {project.folder}", temp)
    assert "has other test files than this process: test_inner.py differs; to copy them to each node, give" in error
