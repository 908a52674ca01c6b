"""Every command that reads run files, on every file that is not to be believed: one line, and nothing changed."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from everyrank.cli import main

from tests.made_up_runs import case, header, made_up, run_of


def _of_a_gigabyte(file: Path) -> None:
    with file.open("wb") as made:
        made.write(made_up(cases=3).data)
        made.truncate(1024**3)


def _two_subjects(file: Path) -> None:
    run_of(header(), [case(test="test_a.py::test_one"), case(test="test_b.py::test_two")]).write(file)


def _without_outcome(file: Path) -> None:
    file.write_bytes(made_up(cases=5).data.replace(b'"outcome":"pass"', b'"outcome":null', 1))


def _cut_compressed(file: Path) -> None:
    file.write_bytes(gzip.compress(made_up(cases=50).data)[:-2000])


def _without_trailer(file: Path) -> None:
    """All lines are there; what is missing is the checksum that would prove it."""
    file.write_bytes(gzip.compress(made_up(cases=5).data)[:-4])


def _damaged(file: Path) -> None:
    data = bytearray(gzip.compress(made_up(cases=50).data))
    data[200:210] = b"\xff" * 10
    file.write_bytes(data)


def _of_newlines(file: Path) -> None:
    file.write_bytes(gzip.compress(made_up(cases=3).data + b"\n" * 10**6))


def _of_many_compressed(file: Path) -> None:
    file.write_bytes(gzip.compress(made_up(cases=3).data) + gzip.compress(b"") * 10_000)


def _of_a_crowd(file: Path) -> None:
    crowd = msgspec.structs.replace(header(), cases=["x"] * 400_000)
    file.write_bytes(gzip.compress(msgspec.json.encode(crowd) + b"\n"))


def _of_the_far_future(file: Path) -> None:
    made_up(cases=3, started=1e18).write(file)


def _socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(file))  # from here: a whole path may be too long for a socket


#: what is wrong with it: (how it is made, what is said)
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "not ours": (lambda file: file.write_text('{"event": "start"}\n'), "not a run file of everyrank"),
    "newer": (lambda file: file.write_text('{"line":"header","schema":99}\n'), "upgrade to read it"),
    "empty": (lambda file: file.write_bytes(b""), "empty: its run never began"),
    "a gigabyte": (_of_a_gigabyte, "larger than 512 MiB"),
    "compressed newlines": (_of_newlines, "too large: more than 250,000 lines"),
    "10,001 compressed files": (
        _of_many_compressed,
        "it is 10,000 compressed files in a row, and no run writes more",
    ),
    "400,000 cases": (
        _of_a_crowd,
        "too large: its run has 400,000 cases, and a run file may have 200,000: split the",
    ),
    "a date that no calendar has": (_of_the_far_future, "Expected `float` <= 253402300799.0 - at `$.started`"),
    "binary": (lambda file: file.write_bytes(bytes(range(256))), "binary: a run file is lines of JSON"),
    "cut": (lambda file: file.write_bytes(made_up(cases=5).data[:-30]), "cut in the middle of a line"),
    "doubled": (lambda file: file.write_bytes(made_up(cases=5).data * 2), "two run files in one"),
    "two subjects": (_two_subjects, "two subjects are named 'mine.Optimizer'"),
    "no outcome": (_without_outcome, "has no outcome"),
    "a folder": (lambda file: file.mkdir(), "cannot be read: Is a directory"),
    "a pipe that nobody writes to": (os.mkfifo, "cannot be read: it is a pipe that nobody writes to"),
    "a socket": (_socket, "cannot be read: it is not a plain file"),
    "a device": (lambda file: file.symlink_to("/dev/zero"), "cannot be read: it is not a plain file"),
    "compressed and cut": (_cut_compressed, "cut in the middle of a line"),
    "compressed and without its trailer": (_without_trailer, "cut at the end of its compressed data"),
    "compressed and damaged": (_damaged, "cannot be read: its compressed data is damaged"),
    "compressed and empty": (
        lambda file: file.write_bytes(gzip.compress(b"")),
        "empty: its run never began",
    ),
    "missing": (lambda file: None, "cannot be read: No such file or directory"),
}

COMMANDS = {
    "diff": ["diff", "good.jsonl", "bad/bad.jsonl", "-o", "output"],
    "accept": ["accept", "bad/bad.jsonl", "--ledger", "output"],
    "badge": ["badge", "bad/bad.jsonl", "--subject=mine.Optimizer", "-o", "output.svg"],
    "page": ["page", "bad/bad.jsonl", "-o", "output"],
    "history": ["history", "bad", "-o", "output"],
    "trace": ["trace", "bad/bad.jsonl", "-o", "output"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made_up(cases=9).write(tmp_path / "good.jsonl")
    for name in ("output", "output.svg"):
        (tmp_path / name).write_text("of last night")
    (tmp_path / "bad").mkdir()
    return tmp_path


def _everything(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files if path.stat().st_size < 10**6}


@pytest.mark.parametrize("kind", BAD)
def test_it_is_reported_on_one_line_and_nothing_is_changed(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    make, message = BAD[kind]
    make(folder / "bad" / "bad.jsonl")
    before = _everything(folder)
    for command, arguments in COMMANDS.items():
        assert main(arguments) == 2, command
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"everyrank {command}: ")
        # A folder of runs may hold folders, and what is not there is not looked for.
        passed_over = command == "history" and kind in ("a folder", "missing")
        assert ("no run file that can be read" if passed_over else message) in err
        assert _everything(folder) == before, command


def test_a_file_without_rights(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(cases=9).write(folder / "bad" / "bad.jsonl")
    opened = Path.open

    def refuse(path: Path, *arguments: object, **keywords: object) -> object:
        if path.name == "bad.jsonl":  # as it is for all but root
            raise PermissionError(13, os.strerror(13))
        return opened(path, *arguments, **keywords)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    for command, arguments in COMMANDS.items():
        assert main(arguments) == 2, command
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert "bad.jsonl: cannot be read: Permission denied" in err
        assert (folder / "output").read_text() == "of last night"


def _status(folder: Path, arguments: list[str], redirect: str) -> tuple[int, str]:
    """How a command ends whose stdout goes elsewhere, and what it says of it."""
    line = f'exec "$@" {redirect}'
    command = ["bash", "-c", line, "bash", sys.executable, "-m", "everyrank", *arguments]
    done = subprocess.run(command, cwd=folder, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["diff", "good.jsonl", "good.jsonl"],
        ["diff", "good.jsonl", "good.jsonl", "-o", "/dev/full"],
        ["accept", "good.jsonl", "--dry-run", "--ledger", "ledger.toml", "--subject=everyrank.RpcOptimizer"],
        ["badge", "good.jsonl", "--subject=torch.replicate"],
        ["page", "good.jsonl", "-o", "page.html"],
        ["history", "bad"],
        ["schema"],
    ],
    ids=" ".join,
)
def test_a_full_disk_is_no_regression(folder: Path, arguments: list[str]) -> None:
    made_up(cases=9).write(folder / "bad" / "night.jsonl")
    code, printed = _status(folder, arguments, ">/dev/full")
    assert code == 2
    assert printed.count("\n") == 1
    assert printed.startswith(f"everyrank {arguments[0]}: ")
    assert "cannot be written: No space left on device" in printed


def test_nor_is_a_stdout_that_is_closed_or_a_reader_that_has_seen_enough(folder: Path) -> None:
    code, printed = _status(folder, ["diff", "good.jsonl", "good.jsonl"], ">&-")
    assert (code, printed) == (2, "everyrank diff: stdout: cannot be written: it is closed\n")
    code, printed = _status(folder, ["diff", "good.jsonl", "good.jsonl"], "> >(true)")
    assert (code, printed) == (0, "")


def test_a_fault_of_ours_is_no_regression(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everyrank.reports.diff.diff.diff", lambda *_: 1 / 0)
    assert main(["diff", "good.jsonl", "good.jsonl"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["diff", "good.jsonl", "good.jsonl", "-o", "pipe"],
        ["diff", "good.jsonl", "good.jsonl", "--aliases", "pipe"],
        ["page", "good.jsonl", "-o", "pipe"],
        ["accept", "good.jsonl", "--ledger", "pipe", "--subject=everyrank.RpcOptimizer"],
    ],
    ids=" ".join,
)
def test_a_pipe_that_has_no_other_end_hangs_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    os.mkfifo(folder / "pipe")
    made_up(seed=1, cases=400).write(folder / "good.jsonl")
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert "it is a pipe that nobody" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_the_command_and_its_exit_status(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: everyrank {command}" in out
    assert "--partial" in out
