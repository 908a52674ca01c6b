"""The examples of README and docs/ work: blocks of Python are run, and commands have the options that they show.

The programs in docs/findings/ show faults of torch. Some of them deadlock, so they are only compiled.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from everyrank.cli import COMMANDS, main
from everyrank.model.toml import tomllib
from everyrank.reports.diff.pairing import Aliases, read_aliases
from everyrank.suites.engine.ledger import read as read_ledger

from tests.documents import DOCUMENTS, ROOT, Block, as_program, blocks, commands, quoted_options
from tests.inner import Inner, Project

BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
PYTHON = [block for block in BLOCKS if block.kind == "python"]
#: The moves of a contract of one's own stand in a package that tests/suites/test_own_contract.py runs.
OF_A_PACKAGE = "everyrank.suites.moves"
PROGRAMS = [
    block
    for block in PYTHON
    if "docs/findings/" not in block.document and block.text.count("\n") > 3 and OF_A_PACKAGE not in block.text
]

#: Stands in for a user's own library.
MYLIB = """
from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer as MyOptimizer
from everyrank.suites.trainer.subjects.ddp import DDP as SUBJECT
"""

#: The one law of a whole contract that is run here.
ONE_LAW = "--law=state.kept"


def _is_tests(block: Block) -> bool:
    if 'contract="trainer"' in block.text:  # tests/suites/test_trainer.py runs those, by laws of their own
        return False
    return "def test" in block.text or "@pytest.mark." in block.text


@pytest.fixture(scope="module")
def ran(module_project: Project) -> Inner:
    """Run all blocks that are test files, in one run."""
    module_project.write("mylib.py", MYLIB)
    ledger, _ = [block for block in blocks("docs/conformance.md") if block.kind == "toml"]
    module_project.write("conformance.toml", ledger.text)
    for block in PROGRAMS:
        if (name := _saved_as(block)) is not None:
            module_project.write(name, block.text)
    for block in filter(_is_tests, PROGRAMS):
        if _saved_as(block) is None:
            module_project.write(_file(block), _numbered(as_program("import pytest\n" + block.text)))
    return module_project.run("-o", "everyrank_timeout=120", ONE_LAW)


def _saved_as(block: Block) -> str | None:
    """Return the file that a block names in its first line, so that others can import it."""
    named = re.match(r"# (\w+\.py)$", block.text.partition("\n")[0])
    return named[1] if named else None


def _file(block: Block) -> str:
    return _saved_as(block) or f"test_{re.sub(r'[^a-z0-9]', '_', block.id.lower())}.py"


def _numbered(program: str) -> str:
    """Number the tests that were put below marks that stand alone: they all have one name."""
    numbers = iter(range(1000))
    return re.sub(r"def test_marked\(", lambda _: f"def test_marked_{next(numbers)}(", program)


def test_every_block_has_a_known_kind() -> None:
    kinds = {block.kind for block in BLOCKS}
    assert kinds == {"python", "toml", "yaml", "commands", "text", "{eval-rst}"}
    assert len(PROGRAMS) >= 8


def test_a_block_of_python_compiles() -> None:
    for block in PYTHON:
        compile(as_program(block.text), block.id, "exec")


@pytest.mark.parametrize("block", [block for block in PROGRAMS if _is_tests(block)], ids=lambda block: block.id)
def test_a_test_file_in_a_document_passes(ran: Inner, block: Block) -> None:
    mine = [test for test in ran.tests.values() if test.nodeid.startswith(_file(block))]
    assert mine, ran.out
    for test in mine:
        lacks_gpus = test.outcome == "skipped" and "needs " in test.text
        assert test.outcome == "passed" or lacks_gpus, test.text


def test_the_first_failure_of_the_readme_is_as_shown(project: Project) -> None:
    """Who pastes the test, and then the shortcut, finds each line of the failure, in this order."""
    program, shortcut, *_ = [block.text for block in blocks("README.md") if "def mean(" in block.text]
    shown, *_ = [block.text for block in blocks("README.md") if "test_mean.py:" in block.text]
    head = "def mean(values):\n"
    assert program.count(head) == 1
    assert shortcut.startswith(head)
    project.write("test_mean.py", program.replace(head, shortcut))
    lines = iter(project.run("test_mean.py").out.splitlines())
    assert [line for line in shown.splitlines() if line != "..." and line not in lines] == []


@pytest.mark.parametrize("block", [block for block in PROGRAMS if not _is_tests(block)], ids=lambda block: block.id)
def test_any_other_program_in_a_document_runs(block: Block) -> None:
    exec(compile(block.text, block.id, "exec"), {"__name__": "block"})


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "toml"], ids=lambda block: block.id)
def test_a_block_of_toml_is_read(block: Block, tmp_path: Path) -> None:
    """Read each block; the ledger is also read by the test of the program beside it, above."""
    assert tomllib.loads(block.text)
    if "[[include]]" in block.text:
        (tmp_path / "mylib.toml").write_text(next(each for each in BLOCKS if "[[known]]" in each.text).text)
        (tmp_path / "other.toml").write_text(block.text)
        assert read_ledger(tmp_path / "other.toml").entries
    if "[laws]" in block.text:
        (tmp_path / "aliases.toml").write_text(block.text)
        assert read_aliases(tmp_path / "aliases.toml", [], []) != Aliases({}, {})


_OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


@pytest.fixture(scope="module")
def options_of_pytest(pytestconfig: pytest.Config) -> set[str]:
    """Return the options of all plugins, also those that this run lacks, in every spelling."""
    groups = [pytestconfig._parser._anonymous, *pytestconfig._parser._groups]
    spelled = {name for group in groups for option in group.options for name in option.names()}
    command = [sys.executable, "-m", "pytest", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return spelled | set(_OPTION.findall(done.stdout)) | {"--reruns"}  # of pytest-rerunfailures, which may be absent


def _options_of(command: str) -> set[str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([command, "--help"])
    return set(_OPTION.findall(out.getvalue()))


#: These commands pass further options to pytest.
_TO_PYTEST = ("run", "kill-matrix")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_in_a_document_is_known_with_its_options(document: str, options_of_pytest: set[str]) -> None:
    rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    for program, *words in commands(document):
        given = {re.split(r"=|(?<=^-[a-z])(?=.)", word)[0] for word in words if re.match(r"--?[a-z]", word)}
        if program == "pytest":
            assert given <= options_of_pytest, (program, words)
        elif program == "everyrank":
            command = words[0]
            if command.startswith("-"):
                assert command in ("--version", "--help"), words
                continue
            assert command in COMMANDS or command.isupper() or command == "COMMAND", words
            known = _options_of(command) | (options_of_pytest if command in _TO_PYTEST else set())
            assert given <= known, (program, words)
        elif program == "make":
            assert {word for word in words if "=" not in word} <= targets, words
        elif program.startswith("ci/"):
            assert (ROOT / program).exists(), program


def test_every_option_that_a_document_names_exists(options_of_pytest: set[str]) -> None:
    known = (
        options_of_pytest | {"--help", "--version"} | {name for command in COMMANDS for name in _options_of(command)}
    )
    named = [(name, option) for name in DOCUMENTS if "findings" not in name for option in quoted_options(name)]
    assert [(name, option) for name, option in named if re.split(r"[= |]", option)[0] not in known] == []


def test_the_page_for_contributors_names_files_that_exist_and_an_example_that_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]+\.\w+)`", text))
    law, rogue = "suites/trainer/laws/training.py", "fixtures/rogues/trainer/steps.py"
    assert {law, rogue} <= named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
    assert '@law("batches", ' in (ROOT / law).read_text()
    assert "class TakesBackTheMemoryOfABatch(" in (ROOT / rogue).read_text()
