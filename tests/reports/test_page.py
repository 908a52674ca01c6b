"""The page's file: what it holds, how large it is, and what no text of a test can do to it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections import Counter
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from everyrank import cli
from everyrank.model.outcome import ENDINGS
from everyrank.reports.page.build import SCRIPTS, STYLES, embedded, page
from everyrank.reports.page.columns import COLUMNS
from everyrank.reports.page.data import details
from everyrank.reports.runfile.model import ErrorPart, OutputPart
from everyrank.reports.runfile.read import Run, read

from tests.made_up_runs import NASTY, MadeUp, case, header, made_up, run_of


class Parts(HTMLParser):
    """The page as a browser cuts it up: scripts by id, and every tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: dict[str, str] = {}
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.inside = ""
        self.style = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        self.inside = dict(attrs).get("id") or tag if tag in ("script", "style") else ""

    def handle_data(self, data: str) -> None:
        if self.inside == "style":
            self.style += data
        elif self.inside:
            self.scripts[self.inside] = self.scripts.get(self.inside, "") + data

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    @property
    def data(self) -> Any:
        return json.loads(self.scripts["data"])

    @property
    def chunks(self) -> list[Any]:
        return [json.loads(zlib.decompress(base64.b64decode(chunk))) for chunk in json.loads(self.scripts["details"])]


def _page(run: MadeUp, folder: Path, **keywords: Any) -> str:
    return page([read(run.write(folder / "run.jsonl"), **keywords)])


def _ids(data: Any) -> list[str]:
    """Node ids, put together from the parts that cases share, as the page does it."""
    ids = []
    for index in range(data["count"]):
        head, case, (contract, law) = (_text(data, name, index) for name in ("head", "case", "law"))
        tail = data["values"]["tail"][index] >= 0 and _text(data, "tail", index)
        ids.append(head + (case if tail is False else f"{contract}/{law}[{case}]{tail}"))
    return ids


def _text(data: Any, column: str, index: int) -> Any:
    return data["tables"][column][data["values"][column][index]]


def test_every_case_is_there_with_its_id_its_outcome_and_its_details(tmp_path: Path) -> None:
    run = made_up(cases=300)
    parts = Parts(_page(run, tmp_path))
    data, details = parts.data, [case_details for chunk in parts.chunks for case_details in chunk]
    by_id = {case.id: case for case in run.cases}
    assert _ids(data) == run.header.cases
    assert [column["name"] for column in data["columns"]] == [column.name for column in COLUMNS]
    assert set(data["values"]) == {*(column.name for column in COLUMNS), "run", "cause", "started"}
    for index, name in enumerate(_ids(data)):
        line, detail = by_id[name], details[index]
        assert data["outcomes"][data["values"]["outcome"][index]] == line.outcome
        assert _text(data, "subject", index) == line.subject
        assert detail.get("text", "") == line.text
        assert len(detail.get("ranks", [])) == len(line.ranks)
        assert len(detail.get("rollcall", [])) == len(line.rollcall)
        assert [step["relative"] for step in detail.get("steps", [])] == [step.relative for step in line.steps]


@pytest.mark.parametrize(
    ("listed", "shown"),
    [
        pytest.param("none.position none.frozen none.frozen", "none.position none.frozen", id="as collected"),
        pytest.param(
            "none.position none.frozen none.position", "none.frozen none.position", id="by name if shuffled"
        ),
    ],
)
def test_laws_are_in_the_order_of_collection_if_there_was_an_order(listed: str, shown: str, tmp_path: Path) -> None:
    run = run_of(header(), [case(law, label=f"point{index}") for index, law in enumerate(listed.split())])
    assert [law for _, law in Parts(_page(run, tmp_path)).data["tables"]["law"]] == shown.split()


def test_no_text_of_a_test_is_markup(tmp_path: Path) -> None:
    plain = Parts(_page(made_up(cases=60, nasty=False), tmp_path))
    nasty = Parts(_page(made_up(cases=60), tmp_path))
    assert nasty.tags == plain.tags
    assert "window.broken" in nasty.scripts["data"]
    assert not any("broken" in value for _, value in nasty.attributes)


@pytest.mark.parametrize("text", [*NASTY, "]]>", "<", "&lt;", "\u2028\u2029"])
def test_what_is_embedded_has_no_letter_that_ends_it_and_reads_back_as_it_was(text: str) -> None:
    written = embedded({"text": text})
    assert not re.search("[<>&\u2028\u2029]", written)
    assert json.loads(written) == {"text": text}


def test_every_outcome_has_a_shape_a_word_and_a_colour_in_light_and_dark(tmp_path: Path) -> None:
    text = _page(made_up(cases=5), tmp_path)
    for ending in ENDINGS:
        assert text.count(f'<symbol id="g-{ending}"') == 1
        assert len(re.findall(rf"--o-{ending}: #", text)) == 3  # light, dark, paper
        assert re.search(rf'^  "?{ending}"?: "', text, re.MULTILINE)


def test_no_script_and_no_style_is_left_out() -> None:
    for kind, names in (("js", SCRIPTS), ("css", STYLES)):
        shipped = sorted(path.name for path in files("everyrank.reports.page").joinpath(kind).iterdir())
        assert shipped == sorted(f"{name}.{kind}" for name in names)


def test_a_title_is_text_too(tmp_path: Path) -> None:
    run = read(made_up(cases=5).write(tmp_path / "run.jsonl"))
    text = page([run], "<script>alert(1)</script> {{data}}")
    assert "<title>&lt;script&gt;alert(1)&lt;/script&gt; {{data}}</title>" in text


def test_it_needs_nothing_from_anywhere_and_may_run_nothing_but_its_own(tmp_path: Path) -> None:
    parts = Parts(_page(made_up(cases=60), tmp_path))
    refers = [value for name, value in parts.attributes if name in ("src", "href", "srcset", "action")]
    assert [value for value in refers if not value.startswith("#")] == []
    policy = next(value for name, value in parts.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for text in (parts.scripts["script"], parts.style):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert "url(" not in parts.style
    assert "@import" not in parts.style


def test_errors_that_are_not_finite_are_texts(tmp_path: Path) -> None:
    lost = case(outcome="fail", error=ErrorPart(float("inf"), float("nan"), 1.0, 1, "weight", 0))
    run = Run(tmp_path / "run.jsonl", header(cases=[lost.id]), (lost,), None)
    parts = Parts(page([run]))
    assert parts.data["values"]["error"] == ["inf"]
    assert parts.chunks[0][0]["error"]["ulps"] == "inf"
    assert parts.chunks[0][0]["error"]["absolute"] == "nan"


def test_a_case_takes_less_than_half_a_kilobyte(tmp_path: Path) -> None:
    """So 20,000 cases are less than 10 MB."""
    text = _page(made_up(cases=4_000, workers=8), tmp_path)
    assert len(text.encode()) < 2_000_000
    assert Parts(text).data["count"] == 4_000


def test_texts_too_long_for_a_page_are_shortened_in_the_middle_with_a_note(tmp_path: Path) -> None:
    noise = "".join(f"{number:x}" for number in range(40_000))
    lines = [
        case(label=f"SGD-{number}", outcome="fail", text=f"first\n{noise}\nlast", output=[OutputPart("out", noise)])
        for number in range(20)
    ]
    run = read(run_of(header(), lines).write(tmp_path / "run.jsonl"))
    generous, shortened = details([run])
    assert not shortened
    harsh, shortened = details([run], budget=sum(map(len, generous)) // 3)
    assert shortened
    text = json.loads(zlib.decompress(base64.b64decode(harsh[0])))[0]["text"]
    assert text.startswith("first\n")
    assert text.endswith("\nlast")
    assert "characters left out" in text


def test_a_run_without_a_case_and_tests_without_a_subject_have_a_page_too(tmp_path: Path) -> None:
    assert Parts(_page(run_of(header(), []), tmp_path)).data["count"] == 0
    lines = [line for line in made_up(cases=200).cases if not line.subject]
    data = Parts(_page(run_of(header(), lines), tmp_path)).data
    assert data["tables"]["law"] == [["", "test_collectives.py"]]
    assert "test_all_reduce[<b>bold</b>-ws3]" in data["tables"]["case"]


# --- the command ------------------------------------------------------------------------------------------


def _everyrank(*arguments: Any) -> int:
    return cli.main(["page", *map(str, arguments)])


def test_the_command_writes_the_page_and_prints_what_it_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(header(), [case(label="Adam"), case(label="SGD", outcome="fail")])
    target = tmp_path / "report.html"
    assert _everyrank(run.write(tmp_path / "run.jsonl"), "-o", target) == 0
    assert capsys.readouterr().out == f"{target}: 2 cases, 1 needs a person\n"
    facts = Parts(target.read_text()).data["runs"][0]
    assert facts["file"] == "run.jsonl"
    # A line leaves out what is as by default; the page shows it nevertheless.
    assert (facts["launcher"], facts["workers"], facts["devices"]) == ("fork", 2, [])


def test_an_older_page_is_replaced_and_nothing_else_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = made_up(cases=5).write(tmp_path / "run.jsonl")
    target = tmp_path / "report.html"
    assert _everyrank(file, "-o", target) == 0
    assert _everyrank(file, "-o", target, "--title", "again") == 0
    assert "<title>again</title>" in target.read_text()
    mine = tmp_path / "mine.html"
    mine.write_text("<p>years of work</p>")
    capsys.readouterr()
    for taken in (mine, file):
        before = taken.read_bytes()
        assert _everyrank(file, "-o", taken) == 2
        printed = capsys.readouterr()
        assert printed.err == (
            f"everyrank page: {taken}: this file exists, and is not a page of everyrank: "
            "choose another name, or remove it\n"
        )
        assert taken.read_bytes() == before


def test_files_of_other_subjects_are_parts_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run_of(header(), [case(subject="mine.One")]).write(tmp_path / "one.jsonl")
    second = run_of(header(started=1.0), [case(subject="mine.Two")]).write(tmp_path / "two.jsonl")
    target = tmp_path / "report.html"
    assert _everyrank(first, second, "-o", target) == 0
    assert "2 cases of 2 run files, all as declared" in capsys.readouterr().out
    data = Parts(target.read_text()).data
    assert data["tables"]["subject"] == ["mine.One", "mine.Two"]
    assert data["values"]["run"] == [0, 1]


def test_two_files_of_one_subject_or_one_test_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run_of(header(), [case()]).write(tmp_path / "one.jsonl")
    second = run_of(header(), [case(label="Adam")]).write(tmp_path / "two.jsonl")
    target = tmp_path / "report.html"
    assert _everyrank(first, second, "-o", target) == 2
    assert f"{second}: the subject 'mine.Optimizer' is also in {first}" in capsys.readouterr().err
    plain = [line for line in made_up(cases=100).cases if not line.subject]
    three, four = (run_of(header(), plain).write(tmp_path / f"{name}.jsonl") for name in ("three", "four"))
    assert _everyrank(three, four, "-o", target) == 2
    assert f"is also in {three}" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02", "binary"),
        (b"<html>", "not a run file"),
        (b'{"line":"header","schema":99}\n', "newer everyrank"),
    ],
)
def test_bad_input_is_one_line_and_leaves_the_old_page(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.html"
    assert _everyrank(made_up(cases=5).write(tmp_path / "good.jsonl"), "-o", target) == 0
    before = target.read_bytes()
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(content)
    capsys.readouterr()
    assert _everyrank(bad, "-o", target) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "good.jsonl", "report.html"]


def test_a_killed_run_has_a_page_only_if_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = made_up(cases=20).cut_after(12).write(tmp_path / "run.jsonl")
    target = tmp_path / "report.html"
    assert _everyrank(file, "-o", target) == 2
    assert "no footer" in capsys.readouterr().err
    assert _everyrank(file, "-o", target, "--partial") == 0
    assert "run.jsonl did not finish: 12 of 20 cases reported" in capsys.readouterr().out
    data = Parts(target.read_text()).data
    assert data["count"] == 20
    assert data["runs"][0]["complete"] is False


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = made_up(cases=5).write(tmp_path / "run.jsonl")
    assert _everyrank(file, "-o", tmp_path / "no" / "report.html") == 2
    assert capsys.readouterr().err.count("\n") == 1
