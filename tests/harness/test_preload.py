"""The zygote imports what ranks imported, before it forks further ranks."""

from __future__ import annotations

import sys
import sysconfig
import textwrap
import time
import venv
from pathlib import Path

import pytest
from everyrank.controller.preload import Preloading
from everyrank.verdict.fates import Fate, Fates
from everyrank.wire.keepers import Preload
from everyrank.wire.messages import Record

from tests.inner import Inner, Project

pytestmark = pytest.mark.group("packages")

#: An installed package -> what it does when it is imported, besides bringing some modules along.
PACKAGES = {
    "calm": "",
    "sets_a_variable": "os.environ['SET_BY_A_PACKAGE'] = '1'",
    "starts_a_thread": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "starts_a_process": "subprocess.Popen(['sleep', '1000'])",
    "asks_for_its_rank": "RANK = os.environ.get('RANK')",
    "handles_a_signal": "signal.signal(signal.SIGUSR1, lambda *_: None)",
    "fails_elsewhere": "if again(): raise ImportError('only the first time')",
    "dies_elsewhere": "if again(): os.abort()",
    "leaves_a_file_open": "kept = open(os.devnull)",
    "prints": "print('a banner')",
}
#: Those that a process may have which is going to be forked.
SAFE = {"calm", "sets_a_variable", "prints"}

_BROUGHT = 12

SOURCE = """
    import importlib, os, signal, sys
    from pathlib import Path
    import pytest

    PACKAGES = {packages}
    world = pytest.mark.world(2, fresh=True)

    def threads_of_the_zygote():
        return len(os.listdir(f"/proc/{{os.getppid()}}/task"))

    @world
    def test_imports_all(world):
        for name in [*PACKAGES, "of_the_project"]:
            assert name not in sys.modules
            importlib.import_module(name)

    @world
    def test_afterwards(world, record_property):
        record_property("known", sorted({{*PACKAGES, "of_the_project"}} & sys.modules.keys()))
        record_property("pid", sys.modules["calm"].PID)
        record_property("zygote", os.getppid())
        record_property("threads", threads_of_the_zygote())
        assert os.environ["SET_BY_A_PACKAGE"] == "1"

    @world
    def test_imports_what_was_left_to_it(world):
        import asks_for_its_rank
        assert asks_for_its_rank.RANK == str(world.rank)

    @pytest.mark.world(2, fresh=True, timeout=0.5)
    def test_misses_its_deadline(world):
        Path(f"stuck-{{world.rank}}").write_text(str(os.getpid()))
        while True:
            signal.pause()

    @world
    def test_after_the_deadline(world):
        assert "calm" in sys.modules
        for rank in range(2):
            pid = int(Path(f"stuck-{{rank}}").read_text())
            while pid in children(os.getppid()):  # killed, and perhaps not yet reaped
                pass

    def children(pid):
        return [int(child) for child in Path(f"/proc/{{pid}}/task/{{pid}}/children").read_text().split()]

    @world
    def test_kills_its_zygote(world):
        if world.rank == 1:
            os.kill(os.getppid(), 9)
            while True:  # the kernel takes a while to end the ranks: a test that went on could pass before
                signal.pause()
        world.barrier()

    @world
    def test_kills_the_first_zygote(world):
        if world.rank == 1:
            its_parent = Path(f"/proc/{{os.getppid()}}/stat").read_text().rpartition(")")[2].split()[1]
            os.kill(int(its_parent), 9)
            while True:
                signal.pause()
        world.barrier()

    @world
    def test_after_the_zygotes_death(world):
        assert "calm" not in sys.modules
"""


class InstalledProject(Project):
    """Make a project in a virtual environment with made-up packages, in addition to those of this one."""

    def __init__(self, folder: Path, packages: dict[str, str]) -> None:
        super().__init__(folder)
        environment = folder / "venv"
        venv.EnvBuilder(symlinks=True).create(environment)
        self.python = environment / "bin" / "python"
        home = environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        here = sysconfig.get_paths()["purelib"]
        (home / "all_that_this_one_has.pth").write_text(f"import site; site.addsitedir({here!r})\n")
        for name, body in packages.items():
            write_package(home / name, body)
        write_package(folder / "of_the_project", "")

    def command(self, *arguments: str) -> list[str]:
        return [str(self.python), *super().command(*arguments)[1:]]


def write_package(folder: Path, body: str) -> None:
    """Return a package with some modules. Its ``again()`` is true once two ranks have imported it."""
    folder.mkdir()
    for number in range(_BROUGHT):
        (folder / f"part{number}.py").write_text("")
    head = f"""
        import os, signal, subprocess, sys, threading
        {"; ".join(f"from . import part{number}" for number in range(_BROUGHT))}
        PID = os.getpid()

        def again():
            for number in range(2):
                try:
                    os.close(os.open(f"{folder}/imported{{number}}", os.O_CREAT | os.O_EXCL))
                    return False
                except FileExistsError:
                    pass
            return True
    """
    (folder / "__init__.py").write_text(textwrap.dedent(head) + body + "\n")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> InstalledProject:
    made = InstalledProject(tmp_path_factory.mktemp("project"), PACKAGES)
    made.write("test_inner.py", SOURCE.format(packages=list(PACKAGES)))
    return made


@pytest.fixture(scope="module")
def inner(project: InstalledProject) -> Inner:
    return project.run("-k", "not kills_the_first")


@pytest.mark.smoke
def test_what_ranks_imported_is_there_when_the_next_are_forked(inner: Inner) -> None:
    assert inner["test_imports_all"].outcome == "passed", inner.out
    assert inner["test_afterwards"].outcome == "passed", inner.out
    noted = inner["test_afterwards"].properties
    assert "calm" in noted["known"]
    assert noted["pid"] == noted["zygote"]


@pytest.mark.smoke
@pytest.mark.parametrize("package", sorted(PACKAGES.keys() - SAFE))
def test_what_does_not_belong_into_a_zygote_is_left_to_the_ranks(inner: Inner, package: str) -> None:
    assert package not in inner["test_afterwards"].properties["known"]


@pytest.mark.smoke
@pytest.mark.parametrize("package", sorted(SAFE))
def test_neighbours_of_such_a_package_are_imported_all_the_same(inner: Inner, package: str) -> None:
    assert package in inner["test_afterwards"].properties["known"]


@pytest.mark.smoke
def test_a_module_of_the_users_own_is_never_imported_for_the_ranks(inner: Inner) -> None:
    assert "of_the_project" not in inner["test_afterwards"].properties["known"]


@pytest.mark.smoke
def test_the_zygote_has_one_thread(inner: Inner) -> None:
    assert inner["test_afterwards"].properties["threads"] == 1


@pytest.mark.smoke
def test_a_package_that_asks_for_its_rank_gets_its_own(inner: Inner) -> None:
    assert inner["test_imports_what_was_left_to_it"].outcome == "passed", inner.out


@pytest.mark.smoke
def test_nobody_sees_what_such_an_import_prints_or_how_it_crashes(inner: Inner) -> None:
    assert "a banner" not in inner.out
    assert "Fatal Python error" not in inner.out


@pytest.mark.smoke
def test_ranks_of_such_a_zygote_are_gone_after_their_deadline(inner: Inner) -> None:
    assert "deadline" in inner["test_misses_its_deadline"].text
    assert inner["test_after_the_deadline"].outcome == "passed", inner.out


@pytest.mark.smoke
def test_ranks_are_forked_on_when_the_zygote_that_imported_is_killed(inner: Inner) -> None:
    assert "killed by SIGKILL" in inner["test_kills_its_zygote"].text
    assert inner["test_after_the_zygotes_death"].outcome == "passed", inner.out
    assert "spawned" not in inner.out


def calm_project(tmp_path_factory: pytest.TempPathFactory) -> InstalledProject:
    calm = {"calm": "", "sets_a_variable": PACKAGES["sets_a_variable"]}
    project = InstalledProject(tmp_path_factory.mktemp("project"), calm)
    project.write("test_inner.py", SOURCE.format(packages=list(calm)))
    return project


def test_the_ini_key_turns_it_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    project = calm_project(tmp_path_factory)
    inner = project.run("-o", "everyrank_preload=false", "-k", "imports_all or afterwards")
    assert inner["test_imports_all"].outcome == "passed", inner.out
    assert "KeyError: 'calm'" in inner["test_afterwards"].text


def test_a_zygote_does_not_outlive_the_one_that_it_came_from(tmp_path_factory: pytest.TempPathFactory) -> None:
    project = calm_project(tmp_path_factory)
    inner = project.run("-k", "imports_all or kills_the_first or zygotes_death")
    assert "the zygote was killed by SIGKILL, and all ranks with it" in inner["test_kills_the_first_zygote"].text
    assert inner["test_after_the_zygotes_death"].outcome == "passed", inner.out
    assert "further worlds are spawned" in inner.out


def test_a_world_that_a_dying_zygote_was_ordered_to_start_is_started(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    project = InstalledProject(tmp_path_factory.mktemp("project"), {"calm": ""})
    project.write("test_inner.py", STOPPED)
    inner = project.run()
    assert set(inner.outcomes().values()) == {"passed"}, inner.out
    assert "spawned" not in inner.out


def test_an_import_that_hangs_is_given_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    hanging = {"hangs_elsewhere": "if again(): threading.Event().wait()"}
    project = InstalledProject(tmp_path_factory.mktemp("project"), hanging)
    project.write("test_inner.py", SOURCE.format(packages=list(hanging)))
    inner = project.run("test_inner.py", "-k", "imports_all or zygotes_death")
    assert inner.outcomes() == {"test_imports_all": "passed", "test_after_the_zygotes_death": "passed"}, inner.out


def test_a_run_that_is_killed_while_it_imports_leaves_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    hanging = {
        "hangs_elsewhere": "if again(): open(os.environ['PYTHONPATH'] + '/hangs', 'w'); threading.Event().wait()"
    }
    project = InstalledProject(tmp_path_factory.mktemp("project"), hanging)
    project.write("test_inner.py", SOURCE.format(packages=list(hanging)))
    process = project.start("test_inner.py", "-k", "imports_all or zygotes_death")
    wait_for(project.folder / "hangs")
    process.kill()
    process.communicate()
    project.assert_nothing_left()


STOPPED = """
    import os, signal, subprocess, sys
    from pathlib import Path
    import pytest

    @pytest.mark.world(2, fresh=True)
    def test_imports(world):
        import calm

    @pytest.mark.world(2, fresh=True)
    def test_notes_its_zygote(world):
        assert "calm" in sys.modules
        if world.rank == 0:
            Path("zygote").write_text(str(os.getppid()))

    def test_stops_the_zygote_and_has_it_killed_soon():
        zygote = int(Path("zygote").read_text())
        os.kill(zygote, signal.SIGSTOP)
        subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {zygote}"])

    @pytest.mark.world(2, fresh=True)
    def test_is_started(world):
        assert "calm" not in sys.modules
        world.barrier()
"""

OPTIMIZER = """
    import sys
    import pytest

    @pytest.mark.world(2, fresh=True)
    def test_takes_an_optimizer(process_group):
        import torch
        assert "sympy" not in sys.modules
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    @pytest.mark.world(2, fresh=True)
    def test_finds_what_it_imported(process_group, record_property):
        assert "torch._dynamo.convert_frame" in sys.modules and "sympy" in sys.modules
"""


def test_what_an_optimizer_imports_is_imported_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    project = Project(tmp_path_factory.mktemp("project"))
    project.write("test_inner.py", OPTIMIZER)
    inner = project.run()
    assert set(inner.outcomes().values()) == {"passed"}, inner.out


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def _imported(*names: str) -> Fates:
    record = Record("the test", [], [], [], [], None, imports=[*names])
    return Fates([Fate(rank, record) for rank in range(2)], seconds=1.0)


def test_modules_of_later_tests_are_imported_first_and_each_is_requested_once() -> None:
    """Later modules may import earlier ones, but not the other way round."""
    preloading = Preloading(True)
    preloading.note(_imported("a", "b", "c", "d", "e"))
    assert preloading.take() is None
    preloading.note(_imported("f", "g", "h", "i", "j", "a"))
    assert preloading.take() == Preload([*"fghij", *"abcde"], 11.0)
    preloading.note(_imported(*"abcdefghij"))
    assert preloading.take() is None
