"""To whom a source file belongs, and how its path is shown, whichever links the path takes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pluggy
import pytest
from everyrank.stack.frames import Frame, is_users
from everyrank.stack.paths import shown

from tests.inner import Project

PROGRAM = Path(sys.executable).with_name("pytest")


@pytest.fixture
def project_folder(tmp_path: Path) -> Path:
    for name in ("tests", "src/mine", "libs"):
        (tmp_path / "project" / name).mkdir(parents=True)
    (tmp_path / "project/pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "project/src/mine/__init__.py").write_text("")
    return tmp_path / "project"


def test_a_frame_of_the_users_shows_its_path_from_the_root_folder(project_folder: Path) -> None:
    assert str(Frame(f"{project_folder}/src/mine/__init__.py", 12, "f")) == "src/mine/__init__.py:12"
    assert str(Frame(f"{project_folder}/tests/../tests/test_x.py", 3, "f")) == "tests/test_x.py:3"


def test_the_root_folder_is_where_pytest_is_configured_and_not_a_package_of_its_own_below(
    project_folder: Path,
) -> None:
    (project_folder / "libs/pyproject.toml").write_text("[project]\nname = 'part'\n")
    assert shown(f"{project_folder}/libs/part.py") == "libs/part.py"


def test_without_any_configuration_a_file_below_the_working_folder_is_shown_from_there() -> None:
    program = "import sys; from everyrank.stack.paths import shown; print(shown(sys.argv[1]), shown(sys.argv[2]))"
    # No folder above these has a configuration file.
    done = subprocess.run(
        [sys.executable, "-c", program, "/usr/share/a/b.py", "/nowhere/c.py"],
        cwd="/usr/share", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "a/b.py c.py\n", done.stderr


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py",
         "torch/distributed/distributed_c10d.py"),
        ("/usr/lib/python3/dist-packages/six.py", "six.py"),
        ("../venv/lib/python3.11/site-packages/_pytest/python.py", "_pytest/python.py"),
        (threading.__file__, "threading.py"),
        (subprocess.__file__.replace("subprocess", "concurrent/futures/thread"), "concurrent/futures/thread.py"),
        (pluggy.__file__, "pluggy/__init__.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
    ],
)  # fmt: skip
def test_a_frame_of_a_library_shows_its_path_from_its_package(file: str, text: str) -> None:
    assert shown(file) == text
    assert not is_users(file)


def test_python_is_not_the_users_through_a_link_either(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(os.path.dirname(threading.__file__))
    assert shown(f"{tmp_path}/python/threading.py") == "threading.py"
    assert not is_users(f"{tmp_path}/python/threading.py")


def test_libraries_in_a_folder_on_the_path_are_not_the_users(tmp_path: Path) -> None:
    (tmp_path / "libs/pluggy").mkdir(parents=True)
    (tmp_path / "libs/pluggy/__init__.py").write_text("")
    program = "from everyrank.stack.frames import is_users; import pluggy; print(is_users(pluggy.__file__))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "libs")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("way", ["link", "relative"])
def test_a_roll_call_ends_at_the_users_test_whichever_way_pytest_was_found(project: Project, way: str) -> None:
    project.write(
        "tests/test_waits.py",
        """
        import threading
        import pytest

        @pytest.mark.world(2, timeout=1)
        def test_waits(world):
            if world.rank:
                world.barrier()
            threading.Event().wait()
        """,
    )
    (project.folder / "venv").symlink_to(sys.prefix)
    program = "venv/bin/pytest" if way == "link" else os.path.relpath(PROGRAM, project.folder)
    done = subprocess.run(
        [program, "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--rootdir", "."],
        cwd=project.folder, env=project.environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    project.assert_nothing_left()
    stacks = done.stdout.partition("innermost frame first:")[2].partition("to repeat")[0]
    assert "test_waits at tests/test_waits.py:8" in stacks, done.stdout
    assert "everyrank/rank/world.py" in stacks
    assert "pluggy" not in stacks
    assert "bin/pytest" not in stacks
