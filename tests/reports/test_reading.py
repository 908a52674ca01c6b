"""Reading a run file: what is believed, and one clear line for each way in which it is not."""

from __future__ import annotations

import errno
import gzip
import os
import random
import re
import threading
from pathlib import Path

import msgspec
import pytest
from everyrank.reports import errors
from everyrank.reports.runfile.model import SCHEMA, CaseLine, Footer
from everyrank.reports.runfile.read import LARGEST, read

from tests.made_up_runs import MadeUp, case, header, made_up, run_of


def _lines(run: MadeUp) -> list[bytes]:
    return run.data.splitlines(keepends=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def _refused(file: Path, data: bytes | None = None, partial: bool = False) -> errors.RunFileError:
    """What a reader says of a file: of exactly one class, and on one line."""
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(errors.RunFileError) as caught:
        read(file, partial)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(file))
    return caught.value


def test_a_whole_file_is_read_as_it_was_written(file: Path) -> None:
    written = made_up(cases=120)
    run = read(written.write(file))
    assert run.header == written.header
    assert run.reported == written.cases
    assert run.footer == written.footer
    assert run.complete
    assert sum(run.counts.values()) == 120
    assert written.footer is not None
    assert run.counts == written.footer.counts


def test_counts_begin_with_what_needs_a_person(file: Path) -> None:
    run = read(run_of(header(), [case(outcome="pass"), case(label="Adam", outcome="crash")]).write(file))
    assert list(run.counts) == ["crash", "pass"]


def test_a_run_is_green_if_it_is_whole_and_nothing_in_it_is_red(file: Path) -> None:
    others = [case(label="Adam", outcome="known"), case(label="LBFGS", outcome="not-applicable")]
    good = run_of(header(), [case(), *others])
    assert read(good.write(file)).conclusion.as_declared
    assert not read(good.but({good.cases[1].id: {"outcome": "stale"}}).write(file)).conclusion.as_declared
    assert not read(good.cut_after(3).write(file), partial=True).conclusion.as_declared


def test_cases_without_a_line_in_a_whole_run_were_not_run(file: Path) -> None:
    cases = [case(label="SGD"), case(label="Adam", outcome="fail"), case(label="SGD", law="none.position")]
    run = read(run_of(header(), cases).stopped_after(2).write(file))
    assert run.complete
    assert run.counts == {"fail": 1, "not-run": 1, "pass": 1}
    missing = run.cases[-1]
    assert missing.outcome == "not-run"
    assert (missing.subject, missing.law, missing.optimizer) == ("mine.Optimizer", "none.position", "SGD")
    assert missing.case == cases[2].case
    assert "-x" in missing.message


def test_a_footer_may_count_cases_without_a_line_as_not_run(file: Path) -> None:
    stopped = run_of(header(), [case(), case(label="Adam")]).stopped_after(1)
    footer = msgspec.json.encode(Footer({"pass": 1, "not-run": 1}, 1.0, 1))
    file.write_bytes(b"".join([*_lines(stopped)[:2], footer, b"\n"]))
    assert read(file).counts == {"not-run": 1, "pass": 1}


def test_a_test_without_a_subject_and_a_line_is_known_by_its_id_alone(file: Path) -> None:
    listed = header(cases=["test_a.py::test_b[ws2]"])
    run = read(MadeUp(listed, (), Footer({}, 0.0, 2)).write(file))
    assert run.cases == (CaseLine("test_a.py::test_b[ws2]", "not-run", message=run.cases[0].message),)


@pytest.mark.parametrize("reported", [0, 1, 57])
def test_a_killed_run_is_refused_and_partial_states_how_far_it_came(file: Path, reported: int) -> None:
    made_up(cases=100).cut_after(reported).write(file)
    refused = _refused(file)
    assert type(refused) is errors.NoFooter
    assert f"{reported} of 100 cases reported" in str(refused)
    assert "--partial" in str(refused)
    run = read(file, partial=True)
    assert not run.complete
    assert run.came == f"{reported} of 100 cases reported"
    assert len(run.cases) == 100
    assert run.counts["not-run"] >= 100 - reported
    assert "killed" in run.cases[-1].message


def test_a_line_that_broke_off_is_left_out_of_a_partial_run(file: Path) -> None:
    data = made_up(cases=100).cut_after(50).data
    refused = _refused(file, data[:-20])
    assert type(refused) is errors.Cut
    assert refused.line == 51
    assert read(file, partial=True).came == "49 of 100 cases reported"


def test_a_footer_without_its_line_end_is_a_footer(file: Path) -> None:
    file.write_bytes(made_up(cases=10).data.rstrip(b"\n"))
    assert read(file).complete


def test_blank_lines_are_passed_over(file: Path) -> None:
    file.write_bytes(made_up(cases=10).data.replace(b"\n", b"\r\n\n"))
    assert read(file).complete


def test_a_file_that_is_not_there_and_a_folder(file: Path) -> None:
    refused = _refused(file)
    assert type(refused) is errors.CannotRead
    assert "No such file" in str(refused)
    assert type(_refused(file.parent)) is errors.CannotRead


def test_a_file_without_rights(file: Path) -> None:
    made_up(cases=3).write(file).chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("who runs as root may read everything")
    assert "Permission denied" in str(_refused(file))


def test_a_disk_that_fails_in_the_middle(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(cases=3).write(file)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("everyrank.reports.runfile.read._rest", fail)
    refused = _refused(file)
    assert type(refused) is errors.CannotRead
    assert "Input/output error" in str(refused)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (errors.EmptyFile, b""),
        (errors.EmptyFile, b"\n \n"),
        *((errors.NotOurs, line) for line in (b"hello\n", b"[1]\n", b"<html>", b'{"schema": 1}\n', b"{}\n")),
        (errors.NotOurs, b'{"line": "case", "id": "a", "outcome": "pass"}\n'),
        (errors.Binary, b"\x80\x02}q\x00."),
        (errors.Binary, b"PK\x03\x04\xff\xfe\n"),
        (errors.Binary, b"".join([*_lines(made_up(cases=5))[:3], b"\0" * 100 + b"\n"])),
        (errors.Cut, made_up(cases=5).data[:40]),
        *((errors.Cut, gzip.compress(made_up(cases=5).data)[:end]) for end in (11, 15, 40)),
    ],
)
def test_what_is_no_run_file_is_refused_by_its_kind(file: Path, kind: type, data: bytes) -> None:
    refused = _refused(file, data)
    assert type(refused) is kind
    if kind is errors.NotOurs:
        assert refused.line == 1
    if kind in (errors.EmptyFile, errors.NotOurs):
        assert type(_refused(file, data, partial=True)) is kind


def test_a_newer_schema_is_named_whatever_else_it_holds(file: Path) -> None:
    newer = b'{"line":"header","schema":%d,"new":{}}\n{"line":"novel"}\n' % (SCHEMA + 1)
    refused = _refused(file, newer)
    assert type(refused) is errors.NewerSchema
    assert f"schema {SCHEMA + 1}; this one reads up to {SCHEMA}" in str(refused)
    assert type(_refused(file, newer, partial=True)) is errors.NewerSchema


def test_the_first_schema_is_read_which_had_no_interrupted_cases(file: Path) -> None:
    run_of(header(schema=1), [case(), case(label="Adam", outcome="not-run")]).write(file)
    assert read(file).counts == {"pass": 1, "not-run": 1}


@pytest.mark.parametrize("outcome", [b"", b',"outcome":null', b',"outcome":""'])
def test_a_case_without_an_outcome_is_named(file: Path, outcome: bytes) -> None:
    lines = _lines(made_up(cases=5))
    lines[2] = b'{"line":"case","id":"test_a.py::test_b"' + outcome + b"}\n"
    refused = _refused(file, b"".join(lines))
    assert type(refused) is errors.NoOutcome
    assert refused.line == 3
    assert "test_a.py::test_b has no outcome" in str(refused)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"line":"case","id":"a","outcome":"great"}\n', "great"),
        (b'{"line":"case","id":7,"outcome":"pass"}\n', "$.id"),
        (b'{"line":"poem"}\n', "poem"),
        (b'{"line":"case","id":\n', "not JSON"),
        (b"3\n", "int"),
    ],
)
@pytest.mark.parametrize("partial", [False, True])
def test_the_error_of_a_line_that_is_not_of_the_schema_states_what_is_wrong(
    file: Path, line: bytes, message: str, partial: bool
) -> None:
    lines = _lines(made_up(cases=5))
    lines[3] = line
    refused = _refused(file, b"".join(lines), partial)
    assert type(refused) is errors.BadLine
    assert refused.line == 4
    assert message in str(refused)


def test_keys_that_a_later_version_added_are_passed_over(file: Path) -> None:
    """In each kind of line, and in its parts; a kind of line that is not known may change what the others mean."""
    made = made_up(cases=40)
    novel: list[bytes] = []
    for line in map(msgspec.json.decode, _lines(made)):
        parts = [part for key in ("phases", "ranks", "steps") for part in line.get(key, [])]
        for part in [line, *parts]:
            part["novel"] = {"of": ["a", "later", "version"]}
        novel.append(msgspec.json.encode(line) + b"\n")
    file.write_bytes(b"".join(novel))
    run = read(file)
    assert (run.header, run.reported, run.footer) == (made.header, made.cases, made.footer)


# --- compressed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.jsonl.gz", "run.jsonl"])
def test_a_compressed_file_is_read_as_the_other_is_whatever_its_name(tmp_path: Path, name: str) -> None:
    made = made_up(cases=500)
    (tmp_path / name).write_bytes(gzip.compress(made.data))
    run = read(tmp_path / name)
    assert (run.reported, run.footer) == (made.cases, made.footer)


def test_several_compressed_pieces_in_a_row_are_one_file(file: Path) -> None:
    made = made_up(cases=20)
    file.write_bytes(b"".join(gzip.compress(line) for line in _lines(made)))
    assert read(file).reported == made.cases


@pytest.mark.parametrize("end", [0.2, 0.5, 0.9])
def test_a_compressed_file_that_broke_off_is_cut_and_partial_has_what_is_there(file: Path, end: float) -> None:
    whole = gzip.compress(made_up(cases=200).data)
    refused = _refused(file, whole[: int(len(whole) * end)])
    assert type(refused) is errors.Cut
    run = read(file, partial=True)
    assert not run.complete
    assert abs(len(run.reported) / 200 - end) < 0.3
    assert run.reported == made_up(cases=200).cases[: len(run.reported)]


def test_a_compressed_gigabyte_is_refused_in_the_middle(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everyrank.reports.runfile.read.LONGEST", 10**6)
    refused = _refused(file, gzip.compress(_lines(made_up(cases=3))[0] + b"x" * 10**7))
    assert type(refused) is errors.TooLarge


def test_a_compressed_pipe_whose_writer_takes_its_time_is_read(file: Path) -> None:
    os.mkfifo(file)
    made = made_up(cases=100)
    opened = threading.Event()

    def write() -> None:
        with file.open("wb") as pipe:
            opened.set()
            pipe.write(gzip.compress(made.data))

    writer = threading.Thread(target=write)
    # Its other end is open, and nothing has come yet: as a shell leaves it for <(...).
    first = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    writer.start()
    assert opened.wait(60)
    assert read(file).reported == made.cases
    writer.join(60)
    os.close(first)


def test_a_doubled_file(file: Path) -> None:
    data = made_up(cases=5).data
    refused = _refused(file, data + data)
    assert type(refused) is errors.Doubled
    assert refused.line == 8
    killed = made_up(cases=5).cut_after(3).data
    refused = _refused(file, killed + data)
    assert type(refused) is errors.Doubled
    assert "second header" in str(refused)
    assert type(_refused(file, killed + data, partial=True)) is errors.Doubled


def test_a_case_with_two_lines(file: Path) -> None:
    lines = _lines(made_up(cases=5))
    refused = _refused(file, b"".join([*lines[:3], lines[2], *lines[3:]]))
    assert type(refused) is errors.CaseTwice
    assert refused.line == 4


def test_a_case_that_was_listed_twice_may_have_two_lines(file: Path) -> None:
    run = read(run_of(header(), [case(), case()]).write(file))
    assert run.counts == {"pass": 2}


def test_a_case_that_was_never_listed(file: Path) -> None:
    refused = _refused(file, made_up(cases=5).data.replace(b'"line":"case","id":"', b'"line":"case","id":"other/', 1))
    assert type(refused) is errors.Unlisted
    assert refused.line == 2


def test_a_file_that_lost_a_line_in_its_middle(file: Path) -> None:
    lines = _lines(made_up(cases=20))
    refused = _refused(file, b"".join(lines[:4] + lines[5:]))
    assert type(refused) is errors.Miscounted
    assert "lines are missing" in str(refused)


def test_two_subjects_of_one_name(file: Path) -> None:
    run = run_of(header(), [case(test="test_a.py::test_one"), case(test="test_b.py::test_two")])
    refused = _refused(run.write(file))
    assert type(refused) is errors.TwoSubjects
    assert "test_a.py::test_one and test_b.py::test_two both report rpc-optimizer/parity.one-step[SGD-ws2]" in str(
        refused
    )


def test_a_file_of_a_gigabyte_is_refused_unread(file: Path) -> None:
    with file.open("wb") as made:
        made.write(made_up(cases=3).data)
        made.truncate(1024**3)
    refused = _refused(file)
    assert type(refused) is errors.TooLarge
    assert f"{LARGEST >> 20} MiB" in str(refused)
    assert type(_refused(file, partial=True)) is errors.TooLarge


def test_a_pipe_is_read_as_a_file_is(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        file.write(made_up(cases=3).data)
    try:
        assert read(f"/dev/fd/{reading}").complete
    finally:
        os.close(reading)


@pytest.mark.parametrize(
    "line",
    [b'{"line":"header","novel":' + b"[" * 100_000, b"[" * 100_000, b'{"line":"header","schema":1%s}' % (b"0" * 99)],
)
def test_a_first_line_that_is_meant_to_break_a_reader(file: Path, line: bytes) -> None:
    assert type(_refused(file, line + b"\n")) in (errors.NotOurs, errors.NewerSchema)


@pytest.mark.parametrize("seed", range(8))
def test_a_spoilt_file_is_refused_by_name_or_whole(file: Path, seed: int) -> None:
    chance = random.Random(seed)
    whole = made_up(seed=seed, cases=12).data
    refused = []
    for _ in range(50):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            start = chance.randrange(len(data))
            piece = bytes(chance.choices(b'{}[]",:\n0tfn\\u\0\xff', k=chance.randint(0, 9)))
            data[start : start + chance.choice((0, 1, 200))] = piece or data[:300]
        file.write_bytes(data)
        for partial in (False, True):
            try:
                assert sum(read(file, partial).counts.values()) == 12
            except errors.RunFileError as error:
                refused.append(str(error))
    assert len(refused) > 50
    assert not any("\n" in text for text in refused)


def test_each_error_states_in_one_sentence_what_it_is() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 15
    for kind in kinds:
        doc = kind.__doc__ or ""
        assert re.fullmatch(r"[A-Z][^.]*\.", doc), f"{kind.__name__}: {doc!r}"
