"""The folder of a run on a host that does not see the controller's: it is this user's own, or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.errors import MisuseError
from everyrank.launch.remote.run_folder import RunFolder


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
