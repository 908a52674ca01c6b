"""How a run file ends when its run does not end well, and where it may be written."""

from __future__ import annotations

import gzip
import os
import signal
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from everyrank.reports.errors import NoFooter
from everyrank.reports.runfile.model import CaseLine, Footer
from everyrank.reports.runfile.read import read as believed
from everyrank.reports.runfile.write import NotWritable, RunFile

from tests.inner import Project
from tests.made_up_runs import header
from tests.run_files import read

_TWO = """
    import pytest

    @pytest.mark.world(2)
    def test_one(): pass

    @pytest.mark.world(2)
    def test_two(): assert 0

    @pytest.mark.world(2)
    def test_three(): pass
"""

#: Writes to a pipe that the outer test reads, then waits for ever.
_WAITS = """
    import os, time
    import pytest

    @pytest.mark.world(2)
    def test_one(): pass

    @pytest.mark.world(2)
    def test_waits(world):
        if world.rank == 0:
            with open(os.environ["EVERYRANK_PIPE"], "w") as pipe:
                pipe.write("here")
        time.sleep(600)

    @pytest.mark.world(2)
    def test_three(): pass
"""

_CRASHING_WORKER = """
    import os, signal
    import pytest

    @pytest.mark.world(2)
    def test_one(): pass

    @pytest.mark.world(2)
    def test_kills_its_worker(world):
        if world.rank == 0:
            os.kill(int(os.environ["PYTEST_OF_WORKER"]), signal.SIGKILL)
        world.barrier()

    @pytest.mark.world(2)
    def test_three(): pass
"""

_TELL_PID = """
    import os
    os.environ["PYTEST_OF_WORKER"] = str(os.getpid())
"""


def _started(  # type: ignore[no-untyped-def]
    project: Project,
    *arguments: str,
    monkeypatch: pytest.MonkeyPatch,
    new_session: bool = False,
    file: str = "run.jsonl",
):
    """A run that has come to its second test, which waits."""
    project.write("test_inner.py", _WAITS)
    pipe = project.folder / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("EVERYRANK_PIPE", str(pipe))
    (project.folder / "reports.jsonl").write_text("")
    command = project.command("--run-file", file, *arguments)
    process = project.spawn(command, project.environment(), new_session=new_session)
    assert pipe.read_text() == "here"
    return process


def test_after_x_the_rest_was_not_run_and_what_is_deselected_is_not_listed(project: Project) -> None:
    project.write("test_inner.py", _TWO)
    inner = project.run("-x", "-k", "two or three", "--run-file", "run.jsonl")
    run_file = read(project.folder / "run.jsonl")
    assert run_file.header["cases"] == ["test_inner.py::test_two", "test_inner.py::test_three"]
    assert run_file.outcomes == {"test_two": "fail", "test_three": "not-run"}
    assert run_file.footer is not None
    assert run_file.footer["counts"] == {"fail": 1, "not-run": 1}
    assert run_file.footer["exit"] == inner.code


def test_what_passes_alone_is_marked(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import pytest

        left = []

        @pytest.mark.world(2)
        def test_leaves_something(): left.append(1)

        @pytest.mark.world(2)
        def test_trips_over_it(): assert not left
        """,
    )
    project.run("--run-file", "run.jsonl")
    run_file = read(project.folder / "run.jsonl")
    assert run_file["test_trips_over_it"]["passes_alone"]
    assert run_file["test_trips_over_it"]["world"] == run_file["test_leaves_something"]["world"]
    assert "passes_alone" not in run_file["test_leaves_something"]


def test_a_killed_run_with_workers_leaves_no_footer(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without workers: see the compressed file below."""
    process = _started(project, "-n", "1", monkeypatch=monkeypatch)
    process.kill()
    process.communicate()
    project.assert_nothing_left()
    run_file = read(project.folder / "run.jsonl")
    assert run_file.footer is None
    assert run_file.outcomes == {"test_one": "pass"}
    assert len(run_file.header["cases"]) == 3


def _assert_interrupted(project: Project, process: Any) -> None:
    """Assert that the run ends as interrupted, with the roll call of the test that waited."""
    inner = project.finish(process)
    run_file = read(project.folder / "run.jsonl")
    assert run_file.outcomes == {"test_one": "pass", "test_waits": "interrupted", "test_three": "not-run"}
    # Rank 0 has reported from its test. Where rank 1 is by then is a matter of chance.
    doing = {rank: stance["doing"] for stance in run_file["test_waits"]["rollcall"] for rank in stance["ranks"]}
    assert doing.keys() == {0, 1}
    assert doing[0].startswith("in test_waits at test_inner.py:")
    assert doing[0] in inner.out
    assert f"test_inner.py::test_waits: {run_file['test_waits']['message']}" in inner.out
    assert run_file.footer is not None
    assert run_file.footer["exit"] == inner.code == 2


def test_ctrl_c_asks_the_running_world_and_lists_what_did_not_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = _started(project, monkeypatch=monkeypatch)
    process.send_signal(signal.SIGINT)
    _assert_interrupted(project, process)


def test_workers_report_at_ctrl_c_which_the_whole_process_group_gets(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = _started(project, "-n", "1", monkeypatch=monkeypatch, new_session=True)
    os.killpg(process.pid, signal.SIGINT)
    _assert_interrupted(project, process)


def test_workers_report_when_a_ci_service_cancels_the_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    process = _started(project, "-n", "1", monkeypatch=monkeypatch)
    process.send_signal(signal.SIGTERM)
    _assert_interrupted(project, process)


def test_a_worker_that_is_killed_is_a_crash_of_its_test(project: Project) -> None:
    project.write("test_inner.py", _CRASHING_WORKER)
    project.write("conftest.py", _TELL_PID)
    project.run("-n", "1", "--run-file", "run.jsonl")
    run_file = read(project.folder / "run.jsonl")
    assert run_file.outcomes == {"test_one": "pass", "test_kills_its_worker": "crash", "test_three": "pass"}
    crash = run_file["test_kills_its_worker"]
    assert crash["rule"] == "worker lost"
    assert "crashed while running" in crash["message"]


def test_each_worker_reports_each_test_if_all_run_all_and_two_tests_of_one_name_have_a_line_each(
    project: Project,
) -> None:
    project.write("test_inner.py", _TWO)
    project.write("conftest.py", "def pytest_collection_modifyitems(items): items.append(items[0])")
    project.run("--dist", "each", "--tx", "2*popen", "--run-file", "run.jsonl")
    run_file = read(project.folder / "run.jsonl")
    assert sorted(run_file.header["cases"]) == sorted(case["id"] for case in run_file.cases)
    assert len(run_file.cases) == 8
    assert Counter(run_file.header["cases"])["test_inner.py::test_one"] == 4
    assert run_file.footer is not None
    assert run_file.footer["counts"] == {"pass": 6, "fail": 2}


def test_a_run_without_multi_rank_tests_leaves_an_empty_list(project: Project) -> None:
    project.write("test_inner.py", "def test_plain(): pass")
    for more in ([], ["-n", "1"]):
        inner = project.run("--run-file", "run.jsonl", *more)
        run_file = read(project.folder / "run.jsonl")
        assert (run_file.header.get("cases", []), run_file.cases) == ([], [])
        assert run_file.footer is not None
        assert run_file.footer["exit"] == inner.code == 0


def test_a_file_that_could_not_be_collected_is_named_in_the_footer(project: Project) -> None:
    """The path of the run file, an ini key, is below the root folder."""
    project.write("pytest.ini", "[pytest]\neveryrank_run_file = kept/run.jsonl")
    project.write("below/test_inner.py", _TWO)
    project.write("below/test_broken.py", "import nothing_of_that_name")
    project.run("below")
    run_file = read(project.folder / "kept/run.jsonl")
    assert set(run_file.outcomes.values()) == {"not-run"}
    assert run_file.footer is not None
    assert run_file.footer["troubles"] == ["below/test_broken.py could not be collected"]


def test_a_file_that_is_not_ours_stops_the_run_before_any_test(project: Project) -> None:
    project.write("test_inner.py", _TWO)
    mine = project.write("thesis.txt", "years of work")
    inner = project.run("--run-file", "thesis.txt")
    assert inner.code == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: --run-file: {mine} is not a run file of everyrank, and stays unchanged" in inner.out
    assert not inner.tests
    assert mine.read_text() == "years of work"


def test_workers_without_a_folder_for_their_list_are_refused(project: Project) -> None:
    project.write("test_inner.py", _TWO)
    inner = project.run("-p", "no:tmpdir", "-n", "1", "--run-file", "run.jsonl")
    assert inner.code == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --run-file: with pytest-xdist it needs pytest's temp folder" in inner.out
    assert not inner.tests


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(NotWritable, match="cannot be written: Permission denied"):
        RunFile(tmp_path / "run.jsonl")


def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="cannot be written: Is a directory"):
        RunFile(tmp_path)
    with pytest.raises(NotWritable, match=r"cannot be written: (Not a directory|File exists)"):
        RunFile(tmp_path / "file" / "run.jsonl")
    with pytest.raises(NotWritable, match="is not a plain file"):
        RunFile(Path("/dev/null"))


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    first = RunFile(tmp_path / "run.jsonl")
    with pytest.raises(NotWritable, match="is being written by another run"):
        RunFile(tmp_path / "run.jsonl")
    first.close()
    RunFile(tmp_path / "run.jsonl").close()


def test_a_full_disk_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    import resource

    file = RunFile(tmp_path / "run.jsonl")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        for number in range(5):
            file.write(CaseLine(id=f"test_x.py::test_{number}", outcome="pass"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    file.close()
    assert file.trouble == f"{file.path} could not be written completely: File too large"


def test_text_that_is_no_utf8_is_escaped(tmp_path: Path) -> None:
    file = RunFile(tmp_path / "run.jsonl")
    file.write(CaseLine(id="test_\udcff.py::test", outcome="pass"))
    file.close()
    assert "test_\\\\udcff.py::test" in file.path.read_text()


# --- compressed --------------------------------------------------------------------------------------


def test_a_run_file_may_be_compressed_and_is_written_anew_but_not_by_collecting_only(project: Project) -> None:
    project.write("test_inner.py", _TWO)
    again = ["-p", "cacheprovider", "--run-file", "run.jsonl.gz"]
    project.run(*again)
    file = project.folder / "run.jsonl.gz"
    assert gzip.decompress(file.read_bytes()).count(b"\n") == 5
    assert believed(file).counts == {"fail": 1, "pass": 2}
    written = file.read_bytes()
    project.run(*again, "--collect-only")
    assert file.read_bytes() == written
    project.run(*again, "--lf")
    assert believed(file).counts == {"fail": 1}, "only the last failed are listed"


def test_a_killed_run_leaves_its_lines_in_a_compressed_file_too(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = _started(project, monkeypatch=monkeypatch, file="run.jsonl.gz")
    process.kill()
    process.communicate()
    project.assert_nothing_left()
    file = project.folder / "run.jsonl.gz"
    with pytest.raises(NoFooter, match="1 of 3 cases reported"):
        believed(file)
    assert [case.outcome for case in believed(file, partial=True).reported] == ["pass"]
    RunFile(file).close()  # it is ours, and may be written anew


@pytest.mark.parametrize(
    "data",
    [b"years of work", gzip.compress(b"years of work" * 100, mtime=0), b"\x1f\x8bnot gzip at all" * 9],
    ids=["plain", "compressed", "neither"],
)
def test_what_is_no_run_file_stays_whatever_the_name(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "run.jsonl.gz"
    file.write_bytes(data)
    with pytest.raises(NotWritable, match="is not a run file of everyrank"):
        RunFile(file)
    assert file.read_bytes() == data


def test_a_line_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    file = RunFile(tmp_path / "run.jsonl.gz")
    cases = [CaseLine(id=f"test_x.py::test_{number}", outcome="pass") for number in range(3)]
    file.write(header(cases=[case.id for case in cases]))
    for reported, case in enumerate(cases):
        assert believed(file.path, partial=True).reported == tuple(cases[:reported])
        file.write(case)
    file.write(Footer({"pass": 3}, 1.0, 0))
    file.close()
    assert believed(file.path).complete
    assert not file.trouble
