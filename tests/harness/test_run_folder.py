"""The folder of a run on a host that does not see the controller's: it is this user's own, or none."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from everyrank.errors import MisuseError
from everyrank.launch.remote.run_folder import Guard, RunFolder


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_it_is_made_in_the_hosts_own_temp_folder_and_removed_by_the_last_that_needs_it(temp: Path) -> None:
    folder = RunFolder("/of/the/controller/everyrank-run", b"secret")
    assert Path(folder.path) == temp / "everyrank-run"
    folder.leave(controller_is_gone=True)
    assert list(temp.iterdir()) == []


def test_a_link_that_waits_under_its_name_is_not_followed(temp: Path) -> None:
    (temp / "elsewhere").mkdir()
    (temp / "everyrank-run").symlink_to("elsewhere")
    with pytest.raises(MisuseError, match="everyrank-run is a link, or not this user's alone"):
        RunFolder("/of/the/controller/everyrank-run", b"secret")
    assert list((temp / "elsewhere").iterdir()) == []


def test_a_folder_that_others_may_write_to_is_not_taken(temp: Path) -> None:
    (temp / "everyrank-run").mkdir()
    (temp / "everyrank-run").chmod(0o777)
    with pytest.raises(MisuseError, match="everyrank-run is a link, or not this user's alone"):
        RunFolder("/of/the/controller/everyrank-run", b"secret")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds")
@pytest.mark.parametrize("dismissed", [False, True])
def test_a_guard_removes_the_folder_of_a_controller_that_was_killed(tmp_path: Path, dismissed: bool) -> None:
    folder = tmp_path / "everyrank-run"
    folder.mkdir()
    ended, inherited = os.pipe()
    controller = os.fork()
    if controller == 0:
        guard = Guard(str(folder))
        if dismissed:
            guard.dismiss()
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(inherited)
    assert os.read(ended, 1) == b""  # the controller and its guard have ended
    os.close(ended)
    os.waitpid(controller, 0)
    assert folder.exists() == dismissed
