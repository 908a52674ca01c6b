"""Directives that write a part of a page from the code: laws, marks, fixtures, and the lines of a run file.

:::{laws} trainer            each law of a contract, the bugs that it is there for, and who breaks it
:::{subject} replicate       what a subject of a contract is, as its module states it
:::{lacks} trainer           the names of what a subject of a contract may lack
:::{patterns}                each pattern of deviations, with its rogue
:::{patterns} parity         a table of those that parity names; or contracts
:::{marks}                   the marks that the plugins register
:::{fixtures}                the fixtures of the plugins
:::{run-file}                the lines of a run file, from the schema
"""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import everyrank.fixtures.plugin
import everyrank.suites.plugin
from docutils import nodes
from everyrank.reports.schema import text
from everyrank.suites.compare.mistake import MISTAKES
from everyrank.suites.compare.patterns.fit import PATTERNS
from everyrank.suites.compare.patterns.pattern import Pattern
from everyrank.suites.engine.capability import capabilities
from everyrank.suites.engine.contract import contract
from everyrank.suites.kill.matrix import rogues
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

#: The plugins that have fixtures.
PLUGINS = (everyrank.fixtures.plugin, everyrank.suites.plugin)


class FromCode(SphinxDirective):
    """A directive that is replaced by Markdown, which ``lines`` yields."""

    optional_arguments = 1

    def lines(self) -> Iterator[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(self.lines()), allow_section_headings=True)


class Laws(FromCode):
    def lines(self) -> Iterator[str]:
        asked = contract(self.arguments[0])
        broken_by: dict[str, list[Any]] = {}
        for rogue in rogues(asked.name):
            for law in asked.expand(rogue.breaks):
                broken_by.setdefault(law, []).append(rogue)
        for law in asked.laws.values():
            yield f"## `{law.id}`\n\n{inspect.cleandoc(law.text)}\n"
            known = broken_by.get(law.id, [])
            if known:
                yield "The rogues that must break it, and what each is modelled on:\n"
                yield from (f"- `{rogue.name}`: {rogue.model}" for rogue in known)
                yield ""


class SubjectOf(FromCode):
    def lines(self) -> Iterator[str]:
        module = importlib.import_module(f"everyrank.suites.{self.arguments[0].replace('-', '_')}.contract")
        _, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
        yield rest


class Lacks(FromCode):
    def lines(self) -> Iterator[str]:
        yield "| name | without it, a subject does not claim that |\n|---|---|"
        for each in capabilities(contract(self.arguments[0])).values():
            yield f"| `{each.name}` | {each.text} |"


class Patterns(FromCode):
    def lines(self) -> Iterator[str]:
        if self.arguments:
            yield "| id | what happened |\n|---|---|"
            for pattern in filter(_NAMED_BY[self.arguments[0]], PATTERNS.values()):
                yield f"| `{pattern.id}` | {pattern.sentence} |"
            return
        for pattern in PATTERNS.values():
            yield f"## `{pattern.id}`\n\n{pattern.text}\n"
            yield f"```text\n{pattern.example}\n```\n\nRogue: `{pattern.rogue}`.\n"


def _named_by_contracts(pattern: Pattern) -> bool:
    return type(pattern).of_one_rank is not Pattern.of_one_rank or pattern.id in {each.id for each in MISTAKES}


_NAMED_BY = {
    "contracts": _named_by_contracts,
    "parity": lambda pattern: pattern.example.startswith("parity: "),
}


class Marks(FromCode):
    def lines(self) -> Iterator[str]:
        others = _marks("-p", "no:everyrank", "-p", "no:everyrank-fixtures", "-p", "no:everyrank-suites")
        for mark in dict.fromkeys(_marks()):
            if mark not in others:
                signature, _, text = mark.partition("): ")
                yield f"`@pytest.mark.{signature})`\n: {text}\n"


def _marks(*arguments: str) -> list[str]:
    """Return what pytest prints about each mark that it knows in a folder without tests."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "--markers", *arguments]
        printed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    return [line.removeprefix("@pytest.mark.") for line in printed.splitlines() if line.startswith("@pytest.mark.")]


class Fixtures(FromCode):
    def lines(self) -> Iterator[str]:
        for plugin in PLUGINS:
            for name, value in vars(plugin).items():
                if type(value).__name__ == "FixtureFunctionDefinition":
                    yield f"`{name}`\n: {inspect.cleandoc(value.__doc__ or '')}\n"


class RunFile(FromCode):
    def lines(self) -> Iterator[str]:
        for name, part in json.loads(text())["$defs"].items():
            yield f"## {name}\n\n{part.get('description', '')}\n\n| key | type | default |\n|---|---|---|"
            for key, value in part.get("properties", {}).items():
                default = "required" if key in part.get("required", ()) else f"`{json.dumps(value.get('default'))}`"
                yield f"| `{key}` | {_type(value)} | {default} |"
            yield ""


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return str(value["$ref"]).rpartition("/")[2]
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if "anyOf" in value:
        return " or ".join(map(_type, value["anyOf"]))
    if value.get("type") == "array":
        if parts := value.get("prefixItems"):  # a tuple, whose parts are of one type
            return f"list of {len(parts)} {_type(parts[0])}"
        return f"list of {_type(value.get('items', {}))}"
    if isinstance(value.get("additionalProperties"), dict):
        return f"{_type(value['additionalProperties'])}, by a text"
    return str(value.get("type", "anything"))


def setup(app: Sphinx) -> dict[str, bool]:
    for name, directive in {
        "laws": Laws,
        "subject": SubjectOf,
        "lacks": Lacks,
        "patterns": Patterns,
        "marks": Marks,
        "fixtures": Fixtures,
        "run-file": RunFile,
    }.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True}
