"""Under ``--adopt``, the ranks of a script that a test runs by torchrun are watched, and get one verdict."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from everyrank.scripts.folder import Raised, ScriptFolder, ScriptRank, folder_of_run, has_ended, process_name
from everyrank.scripts.verdict import Seen, fates, text
from everyrank.scripts.watcher import Watcher
from everyrank.wire.messages import WitnessStatement

from tests.engines import one_run
from tests.inner import Inner, Project

# --- the verdict in words ----------------------------------------------------------------------------------------


def waits_at(line: int) -> WitnessStatement:
    return WitnessStatement(1, 1, stack=[("/user/train.py", line, "step")])


def raised(brief: str, line: int, time: float) -> dict[str, object]:
    return {"brief": brief, "location": f"train.py:{line}", "signature": f"{brief} {line}", "time": time}


LOST_PEER = "RuntimeError: Connection closed by peer [127.0.0.1]:4000"


def seen(size: int = 2, **properties: object) -> Seen:
    errors = properties.pop("errors", {})
    assert isinstance(errors, dict)
    found = replace(Seen(size), **properties)  # type: ignore[arg-type]
    found.raised = {rank: Raised(**error) for rank, error in errors.items()}
    found.ended_at = dict.fromkeys(found.status, 1.0)
    return found


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            seen(errors={1: raised("ValueError: bad", 7, 1.0)}, stated={0: waits_at(9)}),
            "rank 1 of 2 failed first, in the script\nrank 1: ValueError: bad at train.py:7\n",
        ),
        (
            seen(errors={0: raised("ValueError: bad", 7, 1.0), 1: raised("ValueError: bad", 7, 1.1)}),
            "on ranks 0,1\nranks 0,1: ValueError: bad at train.py:7",
        ),
        (seen(status={1: signal.SIGKILL}, stated={0: waits_at(9)}), "rank 1 of 2 was killed by SIGKILL\nrank 0: "),
        (
            seen(status={1: 3 << 8}, ended_in_order={1}, errors={0: raised(LOST_PEER, 9, 1.1)}),
            "rank 1 of 2 was lost: exit code 3\nrank 0: lost the connection to a peer at train.py:9",
        ),
        (seen(status={1: signal.SIGABRT}, stated={0: waits_at(9)}), "rank 1 of 2 was killed by SIGABRT\nrank 0: "),
        (
            seen(status={1: signal.SIGABRT}, ended_in_order={1}, stated={0: waits_at(9)}),
            "rank 1 of 2 was lost: killed by SIGABRT after the end of the script: "
            "torch does that now and then if destroy_process_group() was not called\n",
        ),
        (seen(status={1: None}), "rank 1 of 2 was lost: killed by a signal, or by os._exit()\n"),
        (
            seen(status={1: 0}, ended_in_order={1}, errors={0: raised(LOST_PEER, 9, 1.1)}),
            "rank 1 ended the script before rank 0 had what a collective or a message was to bring\n",
        ),
    ],
)
def test_the_rank_that_explains_the_end_is_in_the_first_line(found: Seen, expected: str) -> None:
    assert text("train.py", fates(found)).startswith(f"train.py on 2 ranks: {expected}")


def test_a_deadlock_has_its_cause_and_a_roll_call() -> None:
    shown = text("train.py", fates(seen(stated={0: waits_at(7), 1: waits_at(9)}), deadlock="rank 0 waits for rank 1"))
    assert shown.startswith(
        "train.py on 2 ranks: rank 0 waits for rank 1\n"
        "ranks 0,1 could never have continued, so the script was ended\n\nroll call:\nrank 0 is in step at "
    )


def test_ranks_that_a_killed_torchrun_leaves_are_asked() -> None:
    shown = text("train.py", fates(seen(stated={0: waits_at(7)}), orphaned=True))
    assert "train.py:7 (interrupted)\ntorchrun was killed before ranks 0,1 had finished" in shown


def test_a_watcher_ends_with_the_folder_of_a_run_that_was_over_first(tmp_path: Path) -> None:
    """It waits long for a first rank: a command that has removed its files has none to come."""
    Watcher(ScriptFolder(tmp_path / "gone")).run()
    assert list(tmp_path.iterdir()) == []


# --- who is a rank of a script -----------------------------------------------------------------------------------

VARIABLES = {
    "EVERYRANK_SCRIPTS": "/tests",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_PORT": "4000",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_ERROR_FILE": "error.json",
}


def run_of(agent: int, **variables: str) -> Path:
    found = folder_of_run({**VARIABLES, **variables}, agent)
    assert found is not None
    return found.path


def test_a_run_has_a_folder_of_its_own() -> None:
    assert run_of(7) == run_of(7, RANK="0")
    assert run_of(7) != run_of(8)  # the next run, maybe at the same port
    assert run_of(7) != run_of(7, TORCHELASTIC_RESTART_COUNT="1")
    assert run_of(7, LOCAL_WORLD_SIZE="1") == run_of(8, LOCAL_WORLD_SIZE="1")  # an agent for each rank


@pytest.mark.parametrize("missing", ["EVERYRANK_SCRIPTS", "RANK", "TORCHELASTIC_RUN_ID"])
def test_a_process_that_torchrun_did_not_start_in_a_test_is_no_rank(missing: str) -> None:
    assert folder_of_run({**VARIABLES, missing: ""}, 7) is None


def test_a_program_that_a_rank_runs_is_not_that_rank(tmp_path: Path) -> None:
    folder = ScriptFolder(tmp_path / "run")
    rank = ScriptRank(1, 2, pid=7, agent=6, script="train.py", error_file="")
    assert folder.announce(rank)
    assert not folder.announce(replace_pid(rank, 8))
    assert folder.ranks() == {1: rank}


def replace_pid(rank: ScriptRank, pid: int) -> ScriptRank:
    return ScriptRank(rank.rank, rank.size, pid, rank.agent, rank.script, rank.error_file)


# --- whole runs --------------------------------------------------------------------------------------------------

#: Starts ranks as torchrun does, ends the others if one has failed, and shows its error: without torch, it is quick.
AGENT = """
    import json, os, subprocess, sys, time

    size = 2
    ranks = []
    for rank in range(size):
        variables = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
            "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_ERROR_FILE": f"{os.getpid()}-{rank}",
        }
        ranks.append(subprocess.Popen([sys.executable, *sys.argv[1:]], env=variables))
    failed = None
    while failed is None and any(rank.poll() is None for rank in ranks):
        time.sleep(0.1)
        failed = next((number for number, rank in enumerate(ranks) if rank.poll()), None)
    for rank in ranks:
        rank.terminate()
        rank.wait()
    if failed is not None:
        with open(f"{os.getpid()}-{failed}") as file:
            sys.exit(json.load(file)["message"]["extraInfo"]["py_callstack"])
"""

SCRIPT = """
    import os, signal, sys

    import sitecustomize
    assert sitecustomize.OF_THE_USER
    if os.environ["RANK"] == "1":
        if sys.argv[1] == "raises":
            raise ValueError("planted")
    if sys.argv[1] != "passes":
        signal.pause()
"""

TESTS = """
    import os, signal, subprocess, sys
    import pytest

    RUN = [sys.executable, "agent.py", "script.py"]

    @pytest.mark.parametrize("what", ["passes", "raises"])
    def test_script(what):
        done = subprocess.run([*RUN, what], stderr=subprocess.PIPE, text=True)
        print(done.stderr)
        assert done.returncode == 0

    def test_is_killed():
        agent = subprocess.Popen([*RUN, "hangs"])
        folder = os.environ["EVERYRANK_SCRIPTS"]
        while sum(name.startswith("rank-") for _, _, names in os.walk(folder) for name in names) < 2:
            pass
        agent.kill()
        assert agent.wait() == 0
"""


inner = one_run(
    {"agent.py": AGENT, "script.py": SCRIPT, "sitecustomize.py": "OF_THE_USER = True", "test_inner.py": TESTS},
    "--adopt",
)


def test_a_script_that_ends_well_has_no_verdict(inner: Inner) -> None:
    assert inner["test_script[passes]"].outcome == "passed", inner.out
    assert "torchrun" not in inner["test_script[passes]"].sections


def test_an_error_on_a_rank_is_in_the_report_and_in_the_output(inner: Inner) -> None:
    test = inner["test_script[raises]"]
    verdict = (
        "script.py on 2 ranks: rank 1 of 2 failed first, in the script\n"
        "rank 1: ValueError: planted at script.py:8\n"
        "rank 0: in the script"
    )
    assert test.outcome == "failed"
    assert test.sections["torchrun"] == verdict
    assert test.text.startswith(f"{verdict}\n")
    assert next(iter(test.sections)) == "torchrun"
    assert f"everyrank: {verdict}" in test.sections["Captured stdout call"]


def test_nothing_is_left_of_a_script_whose_torchrun_the_test_has_killed(inner: Inner) -> None:
    test = inner["test_is_killed"]  # the inner run asserts that nothing is left
    assert "torchrun was killed before ranks 0,1 had finished" in test.sections["torchrun"]


# --- a pytest that is killed --------------------------------------------------------------------------------------

OUTLIVED = """
    import os, signal, subprocess

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "1000"])
    with open(f"pids-{os.environ['RANK']}.half", "w") as file:
        file.write(f"{os.getpid()} {os.getppid()} {child.pid}")
    os.rename(file.name, f"pids-{os.environ['RANK']}")
    while True:
        signal.pause()
"""

WAITS = """
    import subprocess, sys

    def test_script():
        subprocess.run([sys.executable, "agent.py", "outlived.py"])
"""


def test_torchrun_and_its_ranks_end_if_pytest_is_killed(project: Project) -> None:
    project.write(
        "agent.py",
        AGENT.replace(
            "[sys.executable, *sys.argv[1:]], ", "[sys.executable, *sys.argv[1:]], start_new_session=True, "
        ),
    )
    project.write("outlived.py", OUTLIVED)
    project.write("test_inner.py", WAITS)
    inner = project.start("--adopt")
    files = [project.folder / f"pids-{rank}" for rank in range(2)]
    while not all(file.exists() for file in files):
        assert inner.poll() is None
        time.sleep(0.01)
    pids = {int(pid) for file in files for pid in file.read_text().split()}
    assert len(pids) == 5
    inner.kill()
    inner.communicate()
    project.assert_nothing_left()


def test_a_process_that_cannot_be_seen_counts_as_living() -> None:
    ours = process_name()
    assert not has_ended(ours)
    assert not has_ended("")
    pid, born, namespace, boot = ours.split()
    assert has_ended(f"{pid} {int(born) - 1} {namespace} {boot}")
    assert not has_ended(f"{pid} {int(born) - 1} {namespace}7 {boot}")
    assert not has_ended(f"{pid} {int(born) - 1} {namespace} {boot}7")


# --- torchrun itself ---------------------------------------------------------------------------------------------

DEADLOCKED = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    if dist.get_rank():
        dist.broadcast(total, 0)
    dist.all_reduce(total)
"""

#: The others need not import torch: torchrun does.
KILLED = """
    import os, signal

    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
"""

RUNS = """
    import subprocess, sys
    import pytest

    TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    @pytest.mark.parametrize("script", ["deadlocked.py", "killed.py"])
    def test_script(script):
        done = subprocess.run([*TORCHRUN, script], stderr=subprocess.PIPE, text=True)
        print(done.stderr)
        assert done.returncode == 0
"""


under_torchrun = one_run({"deadlocked.py": DEADLOCKED, "killed.py": KILLED, "test_inner.py": RUNS}, "--adopt")


@pytest.mark.group("clusters")
@pytest.mark.smoke
def test_a_deadlock_ends_torchrun_with_a_roll_call(under_torchrun: Inner) -> None:
    test = under_torchrun["test_script[deadlocked.py]"]
    calls = "all_reduce at deadlocked.py:10; rank 1 in its 2nd, broadcast at deadlocked.py:9"
    cause = f"deadlocked.py on 2 ranks: rank 0 waits in its 2nd collective, {calls}\n"
    assert test.outcome == "failed", under_torchrun.out
    assert test.sections["torchrun"].startswith(cause)
    assert "rank 1 is waiting in broadcast at deadlocked.py:9" in test.sections["torchrun"]
    assert f"traceback : everyrank: {cause}" in test.sections["Captured stdout call"]


@pytest.mark.group("clusters")
@pytest.mark.smoke
def test_a_rank_that_is_killed_is_named(under_torchrun: Inner) -> None:
    test = under_torchrun["test_script[killed.py]"]
    verdict = "killed.py on 2 ranks: rank 1 of 2 was killed by SIGKILL\nrank 0: in the script"
    assert test.outcome == "failed", under_torchrun.out
    assert test.sections["torchrun"] == verdict
    assert "rank 1 of 2 was killed by SIGKILL\n" in test.sections["Captured stdout call"]
