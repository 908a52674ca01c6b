"""Names and texts are plain English: the words of docs/design.md, "Words that we do not use", stand nowhere.

Names are read by ``ast`` where they are defined, not where they are used: a library may have what names it likes. The
page's JavaScript and CSS are read in the same manner, by ``tests/javascript.py``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.javascript import css_names, javascript_names, javascript_texts

ROOT = Path(__file__).parents[2]

ROOMS = ("fixtures", "harness", "parity", "reports", "suites", "tests", "benchmarks", "examples", "ci")

#: Rooms whose string constants users see, docstrings among them.
SPEAKING = ("fixtures", "harness", "parity", "reports", "suites")

DOCUMENTS = ("README.md", "CHANGELOG.md", "docs/*.md", "docs/findings/*.md", "examples/*.md", "benchmarks/*.md")

PAGE = ROOT / "reports/page"

_RESULT = "result, report, context, or a verb: describe_, render_, list_, report_"
_THING = "the name of the thing: case, rank, param, line, ..."
_INDEX = "index, location, position, arena, ..."

#: Parts of a name, between underscores. In front of a noun `one` is a number (`one_rank`) and may stay.
DEAD_PARTS = {
    **dict.fromkeys(("told", "tell", "tells", "telling", "untold", "said", "says"), _RESULT),
    **dict.fromkeys(("place", "places"), _INDEX),
    "ones": _THING,
}
DEAD_LAST_PARTS = {"one": _THING}
FINE_PARTS = ("in_place", "out_of_place")  # as torch has them

#: Names of variables, arguments and attributes.
DEAD_NAMES = {
    "at": "location, time, index, ...",
    "how": "method, mode, manner, ...",
    "into": "the name of the target",
    "of": "the name of the owner: subject, parent, ...",
    "what": "the name of the thing: label, action, reason, ...",
    "where": "location, condition, ...",
    "who": "rank, worker, owner, ...",
}

#: What no text has, and what to write instead.
DEAD_TEXTS = {
    r"told apart": "distinguished",
    r"told|tells?|telling|untold": "report, show, print, state, name, list, pass on",
    r"comes? to what": "gives the same result as",
    r"what .{0,40}\b(?:comes|came) to\b": "the result of ...",
    r"come to an end|comes to an end": "end",
    r"by (?:itself|themselves)": "alone, on its own, separately",
    r"of so many": "of this many, of N",
    r"and yet": "but",
}
_TEXTS = {
    re.compile(rf"(?<![\w-])(?:{dead})(?![\w-])", re.IGNORECASE): instead for dead, instead in DEAD_TEXTS.items()
}

#: Names that stay because they are keys of the run file, or of the result that such a key is made from.
KEYS = frozenset(
    {("harness/model/result.py", "what"), ("harness/model/result.py", "where"), ("reports/runfile/model.py", "where")}
)


def _files(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]


def _documents() -> list[Path]:
    return [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))]


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every name that the file defines, with its line."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield line, node.name
        elif isinstance(node, ast.arg):
            yield line, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield line, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield line, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield line, node.asname
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield line, node.name


def dead_name(name: str) -> str | None:
    """Return what to write instead of a name, or None if the name is fine."""
    plain = name.strip("_")
    for fine in FINE_PARTS:
        plain = plain.replace(fine, "")
    *_, last = parts = plain.split("_")
    dead = [DEAD_PARTS[part] for part in parts if part in DEAD_PARTS]
    return next(iter(dead), None) or DEAD_LAST_PARTS.get(last) or DEAD_NAMES.get(plain)


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the lines of all string constants of a file, docstrings among them, without names in backticks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, _without_names(line)


def _without_names(line: str) -> str:
    return re.sub(r"(`+)[^`]+\1", "`", line)


def dead_text(text: str) -> str | None:
    """Return the first dead text of a line and what to write instead, or None if the line is fine."""
    for dead, instead in _TEXTS.items():
        if match := dead.search(text):
            return f"{match[0]!r}: write {instead}"
    return None


def _lines_of_document(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a document, without names in backticks and without the list of the dead words itself."""
    listed = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#"):
            listed = "Words that we do not use" in line
        if not listed:
            yield number, _without_names(line)


def _dead_names(path: Path, source: str) -> list[str]:
    return _refused(path, _names(ast.parse(source)))


def _refused(path: Path, names: Iterable[tuple[int, str]]) -> list[str]:
    file = path.relative_to(ROOT).as_posix()
    found = sorted((line, name) for line, name in names if (file, name) not in KEYS)
    return [f"{file}:{line}: {name}: write {instead}" for line, name in found if (instead := dead_name(name))]


def _dead_texts(path: Path, lines: Iterator[tuple[int, str]]) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    return [f"{name}:{line}: {instead}" for line, text in lines if (instead := dead_text(text))]


def test_no_name_has_a_dead_word() -> None:
    found = [line for path in _files(*ROOMS) for line in _dead_names(path, path.read_text())]
    assert not found, "\n".join(found)


def test_no_text_of_a_module_has_a_dead_word() -> None:
    found = [line for path in _files(*SPEAKING) for line in _dead_texts(path, _texts(ast.parse(path.read_text())))]
    assert not found, "\n".join(found)


def test_no_document_has_a_dead_word() -> None:
    found = [line for path in _documents() for line in _dead_texts(path, _lines_of_document(path))]
    assert not found, "\n".join(found)


def test_no_name_of_the_page_has_a_dead_word() -> None:
    scripts = [line for path in _page("js") for line in _refused(path, javascript_names(path.read_text()))]
    styles = [line for path in _page("css") for line in _refused(path, css_names(path.read_text()))]
    assert not scripts + styles, "\n".join(scripts + styles)


def test_no_text_of_the_page_has_a_dead_word() -> None:
    found = [line for path in _page("js") for line in _dead_texts(path, javascript_texts(path.read_text()))]
    for path in (*_page("css"), *_page("html"), *_page("svg")):
        found += _dead_texts(path, ((number, line) for number, line in enumerate(path.read_text().splitlines(), 1)))
    assert not found, "\n".join(found)


def _page(kind: str) -> list[Path]:
    paths = sorted(PAGE.rglob(f"*.{kind}"))
    assert paths
    return paths


@pytest.mark.parametrize(
    "name", ["told", "_told", "is_told", "who", "check_one", "one", "used_ones", "place", "test_a_place_of_its_own"]
)
def test_a_dead_name_is_refused(name: str) -> None:
    assert dead_name(name)


@pytest.mark.parametrize("name", ["one_rank", "in_one_piece", "sum_in_place", "of_the_class", "whole", "placement"])
def test_a_plain_name_is_not_refused(name: str) -> None:
    assert dead_name(name) is None


def test_names_are_found_wherever_they_are_defined() -> None:
    source = """
    import os as told
    def tell(said, *, of): self.place = of
    for one in []: pass
    try: (who := 1)
    except OSError as how: print(what)
    class Telling: untold: int
    """
    path = ROOT / "fixtures/example.py"
    found = [line.split(": ")[:2] for line in _dead_names(path, "if True:" + source)]
    expected = [(2, "told"), (3, "of"), (3, "place"), (3, "said"), (3, "tell"), (4, "one"), (5, "who"), (6, "how")]
    assert found == [[f"fixtures/example.py:{line}", name] for line, name in [*expected, (7, "untold")]]


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        ("the reason is told", "told"),
        ("so that they are told apart", "told apart"),
        ("what a leak on a rank comes to", "what a leak on a rank comes to"),
        ("a rank ends by itself", "by itself"),
        ("a run that did not come to an end", "come to an end"),
    ],
)
def test_a_dead_text_is_refused(text: str, dead: str) -> None:
    assert (dead_text(text) or "").startswith(repr(dead))


def test_a_name_of_a_rogue_may_stay() -> None:
    assert dead_text("tells-nobody, expires-without-telling") is None


def test_names_of_a_script_are_found_where_they_are_defined() -> None:
    script = """
    // told, in a comment; "it" isn't a text
    const told = (one, other) => one.at(-1) - other.of;
    for (const of of list) { of.said = `a ${tell(of, { place: 1 / 2 })} b`; }
    const { where, how: kept } = /[/"'] at/.exec(text), what = a / b / c;
    """
    found = [(line, name) for line, name in javascript_names(script) if dead_name(name)]
    expected = [(3, "told"), (3, "one"), (3, "one"), (4, "of"), (4, "of"), (4, "said"), (4, "tell"), (4, "of")]
    assert found == [*expected, (4, "place"), (5, "where"), (5, "how"), (5, "what")]
    texts = [text for _, text in javascript_texts(script)]
    assert texts == ['// told, in a comment; "it" isn\'t a text', "a ", " b"]


def test_names_of_a_script_and_of_a_style_sheet_are_split_into_words() -> None:
    assert [name for _, name in javascript_names("const isTold = SAID_OF, toldHow")] == [
        "const", "is_told", "said_of", "told_how",
    ]  # fmt: skip
    style = ".row .is-told,\n#told { --who: #fade00; margin: .5em; }\n[data-said] { /* .one */ }"
    assert list(css_names(style)) == [(1, "row"), (1, "is_told"), (2, "told"), (2, "who"), (3, "said")]
