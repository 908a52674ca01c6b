"""The launcher torchrun: one run over the processes that torchrun, or a script, has started."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import on_hosts
from tests.engines import by_hand, torchrun
from tests.inner import Project

pytestmark = pytest.mark.group("clusters")

SOURCE = """
    import json, os, pathlib
    import pytest, torch
    import torch.distributed as dist

    def note(name, **facts):
        with open(pathlib.Path(__file__).with_name(name), "a") as file:
            file.write(json.dumps(facts) + "\\n")

    def test_single():
        note("single", pid=os.getpid())

    @pytest.mark.world(4)
    def test_first(world, process_group, tmp_path):
        print(f"hello from {world.rank}", flush=True)
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        note("first", pid=os.getpid(), folder=str(tmp_path.parent), **{name: os.environ[name] for name in names})
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4

    @pytest.mark.world(4)
    def test_second(world, process_group):
        note("second", pid=os.getpid(), RANK=str(world.rank))

    @pytest.mark.world(3)
    def test_opens_its_own_group(world):
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        assert total.item() == 3

    @pytest.mark.world(2, spread=True)
    def test_spread(world, process_group):
        note("spread", **{name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")})

    @pytest.mark.world(3, spread=True)
    def test_spread_too_far(world):
        pass

    @pytest.mark.world(5)
    def test_too_large(world):
        pass
"""


def noted(project: Project, name: str) -> list[dict[str, str]]:
    lines = [json.loads(line) for line in (project.folder / name).read_text().splitlines()]
    return sorted(lines, key=lambda line: line.get("RANK", ""))


@pytest.fixture(scope="module")
def run(module_project: Project) -> tuple[Project, str, int, dict[str, str]]:
    module_project.write("test_inner.py", SOURCE)
    inner = torchrun(module_project, "-s", "--run-file=run.jsonl").finish()
    return module_project, inner.out, inner.code, inner.outcomes()


def test_each_test_runs_once_and_is_reported_once(run: tuple[Project, str, int, dict[str, str]]) -> None:
    project, out, code, outcomes = run
    assert outcomes == {
        "test_single": "passed",
        "test_first": "passed",
        "test_second": "passed",
        "test_opens_its_own_group": "passed",
        "test_spread": "passed",
        "test_spread_too_far": "skipped",
        "test_too_large": "skipped",
    }, out
    assert code == 0
    assert len(noted(project, "single")) == 1
    assert out.count("test session starts") == 1
    assert "1 (needs 5 ranks, torchrun has 4)" in out
    assert "1 (needs 3 hosts, torchrun has 2)" in out
    endings = [json.loads(line) for line in (project.folder / "run.jsonl").read_text().splitlines()]
    assert sum("test_first" in str(line.get("id")) for line in endings) == 1


def test_ranks_are_where_torchrun_has_put_its_processes(run: tuple[Project, str, int, dict[str, str]]) -> None:
    lines = noted(run[0], "first")
    assert [line["RANK"] for line in lines] == ["0", "1", "2", "3"]
    assert [line["LOCAL_RANK"] for line in lines] == ["0", "1", "0", "1"]
    assert [line["GROUP_RANK"] for line in lines] == ["0", "0", "1", "1"]
    assert {(line["WORLD_SIZE"], line["LOCAL_WORLD_SIZE"], line["GROUP_WORLD_SIZE"]) for line in lines} == {
        ("4", "2", "2")
    }


def test_spread_puts_each_rank_on_another_host(run: tuple[Project, str, int, dict[str, str]]) -> None:
    lines = noted(run[0], "spread")
    assert [(line["RANK"], line["LOCAL_RANK"], line["GROUP_RANK"]) for line in lines] == [
        ("0", "0", "0"), ("1", "0", "1")
    ]  # fmt: skip


def test_a_world_stays_warm_and_ranks_share_a_temp_folder(run: tuple[Project, str, int, dict[str, str]]) -> None:
    first, second = noted(run[0], "first"), noted(run[0], "second")
    assert [line["pid"] for line in first] == [line["pid"] for line in second]
    assert len({line["folder"] for line in first}) == 1


def test_output_is_printed_as_it_comes(run: tuple[Project, str, int, dict[str, str]]) -> None:
    for rank in range(4):
        assert f"[rank {rank}] hello from {rank}" in run[1]


def test_all_processes_end_with_the_exit_code_of_the_run(project: Project) -> None:
    project.write("test_inner.py", "import pytest\n\n@pytest.mark.world(2)\ndef test_fails(world):\n    assert 0\n")
    started = by_hand(project, count=3)
    assert started.finish().outcomes() == {"test_fails": "failed"}
    assert [process.returncode for process in started.agents] == [1, 1, 1]


def test_a_run_without_multi_rank_tests_ends_everywhere(project: Project) -> None:
    project.write("test_inner.py", "def test_plain():\n    pass\n")
    started = by_hand(project, count=2)
    assert started.finish().outcomes() == {"test_plain": "passed"}
    assert [process.returncode for process in started.agents] == [0, 0]


# --- processes that are lost -------------------------------------------------------------------------------

LOSES = """
    import os, signal
    import pytest

    def parent(pid):
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])

    def kill(world, pid):
        world.barrier()
        if world.rank == 1:
            os.kill(pid, signal.SIGKILL)
            while True:
                signal.pause()

    @pytest.mark.world(2)
    def test_loses_a_zygote(world):
        kill(world, os.getppid())
        world.barrier()

    @pytest.mark.world(3)
    def test_runs_on_all_again(world):
        world.all_agree(1)

    @pytest.mark.world(2)
    def test_loses_a_process(world):
        kill(world, parent(os.getppid()))
        world.barrier()

    @pytest.mark.world(2)
    def test_runs_on_the_others(world):
        world.all_agree(1)

    @pytest.mark.world(3)
    def test_has_too_few_left(world):
        pass
"""


@pytest.mark.smoke
def test_a_process_that_is_lost_fails_its_test_and_the_run_goes_on(project: Project) -> None:
    project.write("test_inner.py", LOSES)
    started = by_hand(project, count=3)
    inner = started.finish()
    assert inner.outcomes() == {
        "test_loses_a_zygote": "failed",
        "test_runs_on_all_again": "passed",
        "test_loses_a_process": "failed",
        "test_runs_on_the_others": "passed",
        "test_has_too_few_left": "error",
    }, inner.out
    lost = "rank 1 of 2 was lost: its zygote was killed by SIGKILL (on process 1 of torchrun on "
    assert lost in inner["test_loses_a_zygote"].text
    assert "rank 1 of 2 was lost: process 1 of torchrun on " in inner["test_loses_a_process"].text
    assert "it needs 3 ranks, and 2 of 3 are left: process 1 of torchrun" in inner["test_has_too_few_left"].text
    assert [process.returncode for process in started.agents] == [1, -9, 1]


KILLS = """
    import os, signal, pytest

    @pytest.mark.world(2)
    def test_warm(world):
        world.all_agree(os.listdir(world.host_folder))
        with open("name-of-the-run", "w") as file:  # it is the same on all hosts
            file.write(os.path.basename(os.path.dirname(world.host_folder)))

    def test_kills_the_controller():
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_of_a_run_whose_controller_is_killed(project: Project) -> None:
    project.write("test_inner.py", KILLS)
    started = by_hand(project, count=2)
    started.finish()
    assert [process.returncode for process in started.agents] == [-9, 1]


#: In the controller alone: as if a signal came while it removes its folder.
INTERRUPTED = """
    from everyrank.launch.remote import launcher

    def remove_traces(folder):
        raise KeyboardInterrupt("planted")

    launcher.remove_traces = remove_traces
"""


def test_nothing_is_left_of_a_run_that_is_interrupted_while_it_tidies_up(project: Project) -> None:
    project.write("conftest.py", INTERRUPTED)
    project.write("test_inner.py", "def test_plain():\n    pass\n")
    started = by_hand(project, count=1)
    inner = started.finish()
    assert "KeyboardInterrupt: planted" in inner.out
    assert [process.returncode for process in started.agents] == [pytest.ExitCode.INTERRUPTED]


def test_nothing_is_left_on_hosts_that_share_no_folder(project: Project) -> None:
    project.write("test_inner.py", KILLS)
    second = project.folder / f"temp-of-the-second-{'long-' * 20}"  # too long for multiprocessing's sockets
    second.mkdir()
    words = ["env", f"TMPDIR={second}", *on_hosts.apart_from(project.temp)]
    started = by_hand(project, count=2, prefix=lambda rank: words if rank else [])
    inner = started.finish()  # it looks at the folder of the first
    assert inner.outcomes()["test_warm"] == "passed"
    assert [process.returncode for process in started.agents] == [-9, 1]
    assert [path.name for path in second.iterdir() if path.name.startswith("everyrank-")] == []
    sockets = Path("/tmp", f"{(project.folder / 'name-of-the-run').read_text()}.mp")
    assert not sockets.exists()


# --- bad use -------------------------------------------------------------------------------------------------

ONE = "import pytest\n\n@pytest.mark.world(2)\ndef test_one(world):\n    pass\n"


HALF = {"RANK": "0", "WORLD_SIZE": "1"}
WHOLE = {**HALF, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("variables", "arguments", "expected"),
    [
        (
            {},
            [],
            "torchrun did not start this process; say torchrun --nproc-per-node=4 -m pytest --launcher=torchrun",
        ),
        (HALF, [], "the environment is only half set: MASTER_ADDR, MASTER_PORT is missing"),
        (WHOLE, ["-n2"], "the ranks are torchrun's processes: leave out -n"),
        (WHOLE, ["--pdb"], "a debugger needs the ranks on this host: use --launcher=fork"),
    ],
    ids=["no torchrun", "half an environment", "xdist", "debugger"],
)
def test_bad_use_ends_before_the_first_test(
    project: Project, variables: dict[str, str], arguments: list[str], expected: str
) -> None:
    project.write("test_inner.py", ONE)
    done = subprocess.run(
        project.command("--launcher=torchrun", *arguments),
        cwd=project.folder,
        env={**project.environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"--launcher=torchrun: {expected}" in done.stderr


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (ONE + "\ndef test_two():\n    pass\n", "has other test files than this process: test_inner.py differs"),
        (None, "has other test files than this process: test_more.py is not there"),
    ],
    ids=["changed", "missing"],
)
def test_nodes_with_different_test_files_are_refused(project: Project, other: str | None, expected: str) -> None:
    folders = [project.folder / "one", project.folder / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "test_inner.py").write_text(ONE)
        (folder / "test_more.py").write_text("def test_more():\n    pass\n")
    if other is None:
        (folders[1] / "test_more.py").unlink()
    else:
        (folders[1] / "test_inner.py").write_text(other)
    arguments = ["--rootdir=.", "-p", "no:cacheprovider"]
    inner = torchrun(project, *arguments, each=1, folders=[str(folder) for folder in folders]).finish()
    assert inner.tests == {}
    assert expected in inner.out
    assert inner.code != 0


def test_hosts_that_share_no_folder(project: Project) -> None:
    project.write("helper.py", "WORLD = 4\n")
    project.write("test_inner.py", on_hosts.APART)
    second = on_hosts.apart_from(project.temp)
    inner = torchrun(project, prefix=lambda node: second if node else []).finish()
    assert inner.outcomes() == on_hosts.OUTCOMES, inner.out
    assert "the hosts of this world share no folder. Set TMPDIR" in inner["test_folder"].text


def test_ranks_on_several_hosts_get_gpus_of_their_hosts(project: Project) -> None:
    project.write("test_inner.py", on_hosts.GPUS)
    hosts = [["env", "EVERYRANK_DEVICES=2"], ["env", "EVERYRANK_DEVICES=1"]]
    hosts[1] += ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]  # so to everyrank it is another host
    if subprocess.run([*hosts[1], "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no process ids of one's own")
    inner = torchrun(project, prefix=lambda node: hosts[node]).finish()
    assert inner.outcomes() == {
        "test_three": "passed", "test_three_again": "passed", "test_none": "passed", "test_apart": "passed",
        "test_four": "skipped", "test_one_for_two": "skipped", "test_large": "passed",
    }, inner.out  # fmt: skip
    three = [(line["seen"], line["device"]) for line in noted(project, "three")]
    assert sorted(three) == [("GPU-0", "cuda:0"), ("GPU-0,GPU-1", "cuda:0"), ("GPU-0,GPU-1", "cuda:1")]
    assert [(line["seen"], line["device"]) for line in noted(project, "none")] == [("", "cpu")] * 2
    assert [line["device"] for line in noted(project, "apart")] == ["cuda:0"] * 2
    assert "1 (needs 4 ranks with a GPU each, torchrun has that for 3)" in inner.out
    assert "1 (needs 1 GPU, and on several hosts torchrun has one for each rank)" in inner.out
