"""A result is kept whole or not at all, and never over what it was made of."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from everyrank.reports.errors import CannotWrite
from everyrank.reports.runfile.files import keep


def test_what_was_there_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")
    file.chmod(0o640)
    keep(file, "new")
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["page.html"]


def test_text_that_is_no_utf_8_is_escaped(tmp_path: Path) -> None:
    keep(tmp_path / "a", "lone \udcff surrogate")
    assert (tmp_path / "a").read_bytes() == b"lone \\udcff surrogate"


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(CannotWrite, match=r"page\.html: cannot be written: No space left on device"):
        keep(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_folder_that_is_not_there_and_one_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="No such file"):
        keep(tmp_path / "missing" / "page.html", "new")
    with pytest.raises(CannotWrite, match="is a folder"):
        keep(tmp_path, "new")
    assert os.listdir(tmp_path) == []


def test_a_read_only_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # who runs as root may write everything
    with pytest.raises(CannotWrite, match="it is read-only"):
        keep(file, "new")
    assert file.read_text() == "old"


@pytest.mark.parametrize("name", ["run.jsonl", "link", "hard"])
def test_a_result_never_replaces_the_file_that_it_was_made_of(tmp_path: Path, name: str) -> None:
    source = tmp_path / "run.jsonl"
    source.write_text("a run")
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "hard").hardlink_to(source)
    with pytest.raises(CannotWrite, match="is an input of the command"):
        keep(tmp_path / name, "a page", [tmp_path / "another", source])
    assert source.read_text() == "a run"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("page.html")
    keep(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page.html").read_text() == "new"


def test_a_circle_of_links_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(CannotWrite, match="cannot be written"):
        keep(tmp_path / "a", "new")


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as ours, os.fdopen(writing, "wb"):
        keep(f"/dev/fd/{writing}", "new")
        assert ours.read(3) == "new"
