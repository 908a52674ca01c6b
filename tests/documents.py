"""The blocks of code in README and docs/, by kind.

A fenced block names its kind. An indented block is commands if each of its lines begins with a program, Python if it
parses as Python, and otherwise the output of a program.
"""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for folder in ("", "docs", "docs/findings", "examples", "benchmarks")
    for path in (ROOT / folder).glob("*.md")
    if path.name != "CHANGELOG.md"
)

_FENCED = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}.*\n|\n(?= {4}))+", re.MULTILINE)
_PROGRAM = re.compile(
    r"(?!everyrank (skipped|parity:) )(?:[A-Z_]+=(?:'[^']*'|\S*) )*(?:pytest|everyrank|make|pip|python|sed|ci/\S+)\s"
)
_QUOTED = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    kind: str  # python, toml, yaml (workflows), commands, {eval-rst} (the site's own), or text
    text: str

    @property
    def id(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: str) -> list[Block]:
    text = (ROOT / document).read_text()
    return [*_fenced(document, text), *_indented(document, text)]


def _fenced(document: str, text: str) -> Iterator[Block]:
    for match in _FENCED.finditer(text):
        yield Block(document, text.count("\n", 0, match.start()) + 1, match[1], match[2])


def _indented(document: str, text: str) -> Iterator[Block]:
    plain = _FENCED.sub(lambda match: re.sub(r"[^\n]+", "-", match[0]), text)
    for match in _INDENTED.finditer(plain):
        body = textwrap.dedent(match[0])
        yield Block(document, plain.count("\n", 0, match.start()) + 1, _kind(body), body)


def _kind(body: str) -> str:
    if all(_PROGRAM.match(line) for line in body.splitlines() if line.strip()):
        return "commands"
    try:
        compile(as_program(body), "block", "exec", ast.PyCF_ONLY_AST)
    except SyntaxError:
        return "text"
    return "python"


def as_program(body: str) -> str:
    """Return a block as a program, with a test below each mark that stands alone."""
    return re.sub(
        r"^(@.*(?:\n .*)*)$(?!\n(?:def|class|@.*\n(?:def|class)))",
        r"\1\ndef test_marked(): pass",
        body,
        flags=re.MULTILINE,
    )


def commands(document: str) -> list[list[str]]:
    """Return every command line in a document, in words, also commands in outputs, which readers repeat."""
    lines = [
        line for block in blocks(document) if block.kind in ("commands", "text") for line in block.text.splitlines()
    ]
    found = [line for line in lines if _PROGRAM.match(line)]
    text = _FENCED.sub("", (ROOT / document).read_text())
    found += [quoted for quoted in _QUOTED.findall(text) if _PROGRAM.match(quoted) and " = " not in quoted]
    return [words for line in found if (words := _words(line))]


def _words(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0], re.DOTALL):
        words.pop(0)
    return words


def quoted_options(document: str) -> list[str]:
    """Return the options that are named in running text: `--leaks=fail`."""
    text = _FENCED.sub("", (ROOT / document).read_text())
    return [quoted for quoted in _QUOTED.findall(text) if quoted.startswith("--")]
