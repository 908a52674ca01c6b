"""The report of what a test changed or left open on a rank, with the line that did it; and the mark ``leaks``."""

from __future__ import annotations

import pytest

from tests.inner import Inner, Project

SOURCE = """
    import os, random, signal, socket, subprocess, sys, tempfile, threading
    import pytest, torch

    world_of_2 = pytest.mark.world(2)
    kept = []

    @world_of_2
    def test_thread(world):
        threading.Thread(target=threading.Event().wait, name="for ever", daemon=True).start()  # thread

    @world_of_2
    def test_program(world):
        if world.rank == 1:
            subprocess.Popen(["sleep", "1000"])  # program

    @world_of_2
    def test_fork(world):
        if world.rank == 0:
            if os.fork() == 0:  # fork
                threading.Event().wait()

    def opens(path):
        kept.append(open(path, "w"))  # opened

    @world_of_2
    def test_file(world, tmp_path):
        opens(tmp_path / "left open")

    @world_of_2
    def test_listens(world):
        if world.rank == 0:
            kept.append(socket.create_server(("127.0.0.1", 0)))  # listens

    @world_of_2
    def test_datagrams(world):
        kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))  # datagrams
        kept[-1].bind(("127.0.0.1", 0))

    @world_of_2
    def test_pair(world):
        kept.append(socket.socketpair())

    @world_of_2
    def test_temporary_file(world):
        os.close(tempfile.mkstemp(prefix="mine-")[0])  # temporary file

    @world_of_2
    def test_temporary_folder(world):
        if world.rank == 0:
            tempfile.mkdtemp(prefix="mine-")  # temporary folder

    @world_of_2
    def test_sets_variable(world):
        os.environ["MINE"] = "7"  # sets

    @world_of_2
    def test_changes_variable(world):
        os.environ["INNER_OURS"] = "2"  # changes

    @world_of_2
    def test_deletes_variable(world):
        del os.environ["INNER_OURS"]

    @world_of_2
    def test_dtype(world):
        torch.set_default_dtype(torch.float64)

    @world_of_2
    def test_grad_mode(world):
        torch.set_grad_enabled(False)

    @world_of_2
    def test_device(world):
        torch.set_default_device("meta")

    @world_of_2
    def test_generator(world):
        random.random = random.Random(0).random

    @world_of_2
    def test_handler(world):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    @world_of_2
    def test_folder(world, tmp_path):
        os.chdir("/")

    # --- no leaks

    @world_of_2
    def test_clean(world, tmp_path, monkeypatch):
        monkeypatch.setenv("MINE", "7")
        monkeypatch.chdir(tmp_path)
        torch.manual_seed(0)
        random.seed(0)
        random.random(), torch.rand(3)
        with tempfile.NamedTemporaryFile(), tempfile.TemporaryDirectory(), socket.socketpair()[0]:
            pass
        tempfile.mkdtemp(dir=tmp_path)
        with torch.no_grad():
            pass
        with open(tempfile.mkdtemp(dir=world.folder) + "/x", "w"):
            pass

    @pytest.fixture(scope="module")
    def wide():
        os.environ["WIDE"] = "1"
        with tempfile.NamedTemporaryFile() as file, socket.create_server(("127.0.0.1", 0)):
            yield file

    @world_of_2
    def test_wide(wide, world): pass
"""


def line(comment: str) -> int:
    return next(number for number, text in enumerate(SOURCE.splitlines(), 1) if text.endswith(f"# {comment}"))


#: test -> the report of its leak; ``...`` stands for parts that differ from run to run.
LEAKS = {
    "test_thread": f"ranks 0,1 left a thread: for ever, started at test_inner.py:{line('thread')}",
    "test_program": f"rank 1 left a child process: ...: sleep 1000, started at test_inner.py:{line('program')}",
    "test_fork": f"rank 0 left a child process: ..., started at test_inner.py:{line('fork')}",
    "test_file": f"left a file descriptor: .../left open, opened at test_inner.py:{line('opened')}",
    "test_listens": f"left a socket: TCP, listening on 127.0.0.1:..., opened at test_inner.py:{line('listens')}",
    "test_datagrams": f"left a socket: UDP, at 127.0.0.1:..., opened at test_inner.py:{line('datagrams')}",
    "test_pair": "ranks 0,1 left 2 sockets each: UNIX",
    "test_temporary_file": f"left a temporary file: .../mine-..., made at test_inner.py:{line('temporary file')}",
    "test_temporary_folder": f"left a temporary file: .../mine-..., made at test_inner.py:{line('temporary folder')}",
    "test_sets_variable": "ranks 0,1 left a variable of the environment changed: MINE='7', was not set, "
    f"set at test_inner.py:{line('sets')}",
    "test_changes_variable": "ranks 0,1 left a variable of the environment changed: INNER_OURS='2', was '1', "
    f"set at test_inner.py:{line('changes')}",
    "test_deletes_variable": "left a variable of the environment changed: INNER_OURS is gone, was '1'",
    "test_dtype": "ranks 0,1 left its process changed: default dtype: 'torch.float64', was 'torch.float32'",
    "test_grad_mode": "ranks 0,1 left its process changed: grad mode: 'False', was 'True'",
    "test_device": "ranks 0,1 left its process changed: default device: 'meta', was 'cpu'",
    "test_generator": "ranks 0,1 left its process changed: generator of random was replaced",
    "test_handler": "ranks 0,1 left a signal's handler changed: SIGUSR1: ",
    "test_folder": "ranks 0,1 left its process changed: working directory: '/', was '...'",
}


@pytest.fixture(scope="module")
def ran(module_project: Project) -> Inner:
    module_project.write("test_inner.py", SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INNER_OURS", "1")
        return module_project.run()


@pytest.mark.parametrize("test", LEAKS)
def test_a_leak_is_reported_with_the_line_that_made_it(ran: Inner, test: str) -> None:
    assert ran[test].outcome == "passed"
    text = ran[test].sections["left behind"]
    end = 0
    for part in LEAKS[test].split("..."):
        assert part in text[end:], text
        end = text.index(part, end) + len(part)


@pytest.mark.parametrize("test", ["test_clean", "test_wide"])
def test_a_change_that_was_undone_is_no_leak(ran: Inner, test: str) -> None:
    assert ran[test].outcome == "passed"
    assert "left behind" not in ran[test].sections


def test_an_open_temporary_file_is_reported_once(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import tempfile
        kept = []

        def test_open(world):
            kept.append(tempfile.NamedTemporaryFile())
        """,
    )
    leaks = project.run()["test_open"].sections["left behind"].splitlines()
    assert len(leaks) == 2  # one of each rank
    assert all("left a file descriptor: " in leak and "opened at test_inner.py:6" in leak for leak in leaks)


GPU = """
    import pytest, torch

    #: Stands in for a GPU.
    allocated = {0: 0, 1: 1000}
    torch.cuda.is_initialized = lambda: True
    torch.cuda.device_count = lambda: len(allocated)
    torch.cuda.memory_allocated = lambda number=0: allocated[number]

    @pytest.mark.world(2)
    def test_keeps(world):
        if world.rank == 1:
            allocated[1] += 512

    @pytest.mark.world(2)
    def test_frees(world):
        allocated[1] -= 400
        allocated[0] += 100
        allocated[0] -= 100
"""


@pytest.mark.group("clusters")
def test_gpu_memory_that_grew_is_a_leak(project: Project) -> None:
    project.write("test_inner.py", GPU)
    inner = project.run("--launcher=spawn")
    assert inner["test_keeps"].sections["left behind"] == "rank 1 left GPU memory: 512 bytes on cuda:1"
    assert "left behind" not in inner["test_frees"].sections


MARKED = """
    import threading
    import pytest

    def leak():
        threading.Thread(target=threading.Event().wait, name="for ever", daemon=True).start()

    @pytest.mark.leaks("fail")
    def test_fails(world): leak()

    @pytest.mark.leaks("off")
    def test_off(world): leak()

    @pytest.mark.leaks("report")
    def test_reports(world): leak()

    def test_as_the_run_says(world): leak()

    @pytest.mark.leaks("no")
    def test_misused(world): leak()

    @pytest.mark.leaks
    def test_empty(world): leak()

    @pytest.mark.leaks("fail")
    class TestClass:
        def test_inherits(self, world): leak()

        @pytest.mark.leaks("off")
        def test_overrides(self, world): leak()
"""


def test_the_mark_overrides_the_option(project: Project) -> None:
    project.write("test_inner.py", MARKED)
    inner = project.run("--leaks=fail")
    assert inner.outcomes() == {
        "test_fails": "error",
        "test_off": "passed",
        "test_reports": "passed",
        "test_as_the_run_says": "error",
        "test_misused": "error",
        "test_empty": "error",
        "test_inherits": "error",
        "test_overrides": "passed",
    }
    assert "left behind" in inner["test_reports"].sections
    assert "left behind" not in inner["test_off"].sections
    assert "write one of leaks('report'), leaks('fail'), leaks('off'), not leaks('no')" in inner["test_misused"].text
    assert "write one of leaks('report'), leaks('fail'), leaks('off'), not leaks()" in inner["test_empty"].text
    assert "the test left something behind" in inner["test_fails"].text
    warned = {str(warning["nodeid"]) for warning in inner.warnings if warning["warning"] == "LeakWarning"}
    assert warned == {"test_inner.py::test_reports"}  # a failure says it already
