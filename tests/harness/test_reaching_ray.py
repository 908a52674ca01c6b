"""How this process reaches a Ray cluster, and what is said if it does not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
from everyrank.errors import MisuseError
from everyrank.launch.remote import ray as ray_launcher

from tests.inner import Project

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install ray", allow_module_level=True)
pytestmark = pytest.mark.group("clusters")

ONE = "import pytest\n\n@pytest.mark.world(2)\ndef test_one(world):\n    pass\n"


def test_ray_draws_its_own_random_numbers(project: Project) -> None:
    # Ray's drivers have random names. A plugin may have seeded the generator alike in all workers.
    project.write("ray/_private/ray_constants.py", "ENABLE_RAY_CLUSTER = True")
    project.write(
        "ray/__init__.py",
        """
        import random

        def init(**options):
            with open("drawn", "a") as file:
                file.write(f"{random.getrandbits(64)}\\n")
            raise ConnectionError("no cluster here")
        """,
    )
    project.write(
        "conftest.py",
        """
        import random

        def pytest_collection_finish():
            random.seed(1)

        def pytest_unconfigure():
            with open("later", "a") as file:
                file.write(f"{random.getrandbits(64)}\\n")
        """,
    )
    project.write("test_inner.py", ONE)
    for _ in range(2):
        assert "no cluster here" in project.run("--launcher=ray").out
    drawn, later = [(project.folder / name).read_text().split() for name in ("drawn", "later")]
    assert len(set(drawn)) == 2
    assert len(set(later)) == 1


def test_a_cluster_that_starts_too_late_is_no_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise Exception("The current node timed out during startup.")  # as Ray has it

    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(
        MisuseError, match=r"^cannot connect to a Ray cluster on this host: The current node timed out"
    ):
        ray_launcher._connect(None, "")


def test_a_cluster_of_our_own_is_reached_from_this_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import services

    def refuse(**options: Any) -> None:
        raise ConnectionError(services.resolve_ip_for_localhost(options["_node_ip_address"]))

    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(MisuseError, match=r"cluster on this host: 127\.0\.0\.1$"):
        ray_launcher._connect(None, "")


@pytest.mark.parametrize(
    ("executable", "given"),
    [("/opt/plain/bin/python", None), ("/home/a user/.venv/bin/python", "'/home/a user/.venv/bin/python'")],
)
def test_workers_of_a_copied_folder_have_an_interpreter_with_a_space_in_its_path(
    executable: str, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: Any) -> None:
        raise ConnectionError(options["runtime_env"].get("py_executable"))

    monkeypatch.setattr("ray.init", refuse)
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(MisuseError, match=rf"cluster on this host: {given}$"):
        ray_launcher._connect(None, "/some/folder")


def test_without_ray_the_error_names_what_to_install(project: Project) -> None:
    project.write("ray.py", "raise ImportError('not here')")
    project.write("test_inner.py", ONE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--launcher=ray"],
        cwd=project.folder, env={**project.environment(), "PYTHONPATH": os.fspath(project.folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "Ray is not installed: pip install ray" in done.stderr
