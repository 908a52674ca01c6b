"""The names and the texts of JavaScript and CSS, for tests of the words in the page's files."""

from __future__ import annotations

import re
from collections.abc import Iterator

_JAVASCRIPT = re.compile(
    r"""
    (?P<comment> //[^\n]* | /\*.*?\*/ )
    | (?P<text> "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' )
    | (?P<name> [A-Za-z_$][\w$]* )
    | (?P<number> \d[\w.]* )
    | (?P<sign> \.\.\. | [=!]==? | => | [^\s] )
    """,
    re.VERBOSE | re.DOTALL,
)
_TEMPLATE = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*", re.DOTALL)
_PATTERN = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\[\n])+/[a-z]*")

Token = tuple[int, str, str]


def javascript_tokens(source: str) -> Iterator[Token]:
    """Yield the position, the kind and the text of each token. The parts of a template are texts."""
    position, before = 0, ""
    braces: list[int] = []  # of each template that is open, how many braces are open in it
    while position < len(source):
        if source[position].isspace():
            position += 1
            continue
        is_end = source[position] == "}" and braces and braces[-1] == 0
        if source[position] == "`" or is_end:
            part = _TEMPLATE.match(source, position + 1)
            assert part is not None
            if is_end:
                braces.pop()
            yield position + 1, "text", part[0]
            position = part.end() + 1
            if source.startswith("${", part.end()):
                braces.append(0)
                position += 1
            before = '"'
            continue
        # A slash after a value divides; anywhere else it begins a pattern.
        pattern = _PATTERN.match(source, position) if not re.fullmatch(r"[\w$\")\]]+", before) else None
        token = None if source.startswith(("//", "/*"), position) else pattern
        if token is None:
            token = _JAVASCRIPT.match(source, position)
            assert token is not None
            yield position, token.lastgroup or "", token[0]
        position = token.end()
        if token[0] in "{}" and braces:
            braces[-1] += 1 if token[0] == "{" else -1
        if token.re is _PATTERN or token.lastgroup != "comment":
            before = '"' if token.re is _PATTERN or token.lastgroup == "text" else token[0]


def javascript_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield every name that the file defines: not the members of other values, which it only reads."""
    yield from ((_line(source, position), snake_case(name)) for position, name in defined_names(source))


def defined_names(source: str) -> Iterator[tuple[int, str]]:
    tokens = [token for token in javascript_tokens(source) if token[1] != "comment"]
    for index, (position, kind, text) in enumerate(tokens):
        before = tokens[index - 1] if index else (0, "", "")
        after = tokens[index + 1][2] if index + 1 < len(tokens) else ""
        is_read = before[2] == "." and after != "="
        is_loop = text == "of" and (before[1] == "name" or before[2] in ("]", "}"))
        is_loop = is_loop and before[2] not in ("const", "let", "var")
        if kind == "name" and not is_read and not is_loop:
            yield position, text


def javascript_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of all texts and comments."""
    for position, kind, text in javascript_tokens(source):
        if kind in ("text", "comment"):
            yield from enumerate(text.splitlines(), _line(source, position))


def css_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the classes, the ids, the attributes of data and the variables of a style sheet."""
    for number, line in enumerate(re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL).splitlines(), 1):
        for name in re.findall(r"(?:(?<!\d)\.|#(?![\da-fA-F]{3,8}\b)|\bdata-|--)([A-Za-z][\w-]*)", line):
            yield number, name.replace("-", "_")


def _line(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
