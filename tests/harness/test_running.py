"""The call that a frame is in, by its instruction's position: everyrank.stack.running on frames of this thread."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from everyrank.stack.running import called_name, is_method_without_arguments, iterated, only_call, running_call

needs_columns = pytest.mark.skipif(sys.version_info < (3, 11), reason="code knows no columns before Python 3.11")


class Probe:
    """Notes what its caller's frame runs, as a call in C would be seen from another thread."""

    def __init__(self) -> None:
        self.seen: list[ast.Call | None] = []

    def __getattr__(self, name: str) -> Callable[..., Probe]:
        return self._note

    def _note(self, *_: object) -> Probe:
        frame: FrameType | None = sys._getframe(1)
        assert frame is not None
        self.seen.append(running_call(frame))
        return self


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[Callable[[str], list[str]]]:
    """Run a text as a file, and return the calls that it was in each time a method of ``p`` ran."""

    def run(text: str) -> list[str]:
        file = tmp_path / "program.py"
        file.write_text(text)
        code: CodeType = compile(text, str(file), "exec")
        probe = Probe()
        names: dict[str, Any] = {"p": probe}
        exec(code, names)
        return [ast.unparse(call) if call is not None else "" for call in probe.seen]

    yield run
    linecache.clearcache()


@needs_columns
@pytest.mark.parametrize(
    ("text", "running"),
    [
        ("p.sleep(5); p.send(1); p.wait()", ["p.sleep(5)", "p.send(1)", "p.wait()"]),
        ("(p.sleep(5), p.wait())", ["p.sleep(5)", "p.wait()"]),
        ("p.sleep(p.wait())", ["p.wait()", "p.sleep(p.wait())"]),
        ("'ä'; p.wait()", ["p.wait()"]),
        ("p.first().wait()", ["p.first()", "p.first().wait()"]),
        ("for w in (p, p): w.wait()", ["w.wait()", "w.wait()"]),
    ],
)
def test_the_running_call_of_several_on_a_line_is_known(
    calls: Callable[[str], list[str]], text: str, running: list[str]
) -> None:
    assert calls(text) == running


@needs_columns
def test_a_method_call_over_several_lines_is_known_by_its_name(calls: Callable[[str], list[str]]) -> None:
    assert calls("(p\n  .sleep(5)\n  .wait())")[1].endswith(".wait()")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("work.wait()", "wait"),
        ("    done = work.wait()", "wait"),
        ("    return wait()", "wait"),
        ("time.sleep(5); work.wait()", ""),
        ("sleep(work.wait())", ""),
        ("for work in works: work.wait()", ""),
        ("with lock: work.wait()", ""),
        ("[work.wait() for work in works]", ""),
        ("work = lambda: work.wait()", ""),
        ("work.wait(", ""),
        ("", ""),
    ],
)
def test_without_columns_a_line_must_have_one_call(tmp_path: Path, line: str, name: str) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"{line}\n")
    assert called_name(only_call(str(file), 1)) == name


def test_only_a_method_without_arguments_waits_without_a_limit() -> None:
    found = {
        text: is_method_without_arguments(ast.parse(text, mode="eval").body, "wait")  # type: ignore[arg-type]
        for text in ("w.wait()", "w.x[0].wait()", "w.wait(5)", "w.wait(timeout=5)", "wait()", "w.wait_for()")
    }
    assert [text for text, waits in found.items() if waits] == ["w.wait()", "w.x[0].wait()"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("for batch in loader:", "loader"),
        ("for number, (x, y) in enumerate(self.loaders.train):  # a comment", "self.loaders.train"),
        ("for batch in tqdm(enumerate(loader), total=9):", "loader"),
        ("batch = next(batches)", "batches"),
        ("for batch in make_loader():", ""),
        ("step(next(batches))", ""),
        ("for batch in", ""),
    ],
)
def test_what_a_line_iterates_over_is_named(tmp_path: Path, line: str, name: str) -> None:
    file = tmp_path / "lines.py"
    file.write_text(f"    {line}\n")
    assert iterated(str(file), 1) == name
