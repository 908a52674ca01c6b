"""Another package can have a contract: it is found by entry point, or a subject is given the Contract itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from everyrank.fixtures.rogues import Rogue
from everyrank.model.toml import tomllib
from everyrank.suites import Contract, Point, Subject
from everyrank.suites.engine.case import cases
from everyrank.suites.engine.contract import _offers, contract, contracts
from everyrank.suites.errors import DeclarationError

from tests.documents import blocks
from tests.inner import Project

Install = Callable[..., None]

OURS = ["parameter-server", "replicate", "rpc-optimizer", "sharded-optimizer", "trainer"]


def _write_distribution(folder: Path, name: str, contracts: dict[str, str]) -> None:
    """Write the files that an installer leaves of a distribution's metadata."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{contract} = {value}\n" for contract, value in contracts.items()]
    (metadata / "entry_points.txt").write_text("".join(["[everyrank.contracts]\n", *lines]))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a distribution with contracts, for this process and this test."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, **contracts: str) -> None:
        _write_distribution(tmp_path, name, contracts)
        _offers.cache_clear()

    yield write
    _offers.cache_clear()


def _problem(name: str) -> str:
    with pytest.raises(DeclarationError) as refused:
        contract(name)
    return str(refused.value)


def _contract(**parts: Any) -> Contract:
    return Contract("made-up", arena=lambda subject, point: pytest.fail("no case is run here"), **parts)


def _holds(arena: object, point: Point) -> None:
    """It holds."""


# --- finding contracts -------------------------------------------------------------------------------


def test_an_installed_contract_is_found_beside_ours(install: Install) -> None:
    install("mylib", averaging="nowhere:CONTRACT")
    assert contracts() == ["averaging", *OURS]


def test_an_unknown_contract_is_refused_with_the_names_of_all(install: Install) -> None:
    install("mylib", averaging="nowhere:CONTRACT")
    assert _problem("averagin") == f"unknown contract 'averagin': there are {', '.join(['averaging', *OURS])}"


def test_two_distributions_with_one_contract_are_both_named(install: Install) -> None:
    install("mylib", replicate="nowhere:CONTRACT")
    assert _problem("replicate").startswith("the contract 'replicate' is offered by everyrank ")
    assert _problem("replicate").endswith(" and mylib 1.0: uninstall all but one")
    assert contract("rpc-optimizer").name == "rpc-optimizer"


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("nowhere:CONTRACT", "does not load: ModuleNotFoundError: No module named 'nowhere'"),
        ("shlex:CONTRACT", "does not load: AttributeError: module 'shlex' has no attribute 'CONTRACT'"),
        ("broken:CONTRACT", "does not load: ZeroDivisionError: division by zero"),
        ("string:digits", "is not a Contract but '0123456789'"),
        ("everyrank.suites.replicate.contract:CONTRACT", "has another name: Contract('replicate', ...)"),
    ],
)
def test_a_contract_that_does_not_load_names_its_distribution_and_the_cause(
    install: Install, tmp_path: Path, value: str, cause: str
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    install("mylib", odd=value)
    assert _problem("odd") == f"the contract 'odd' of mylib 1.0, {value}, {cause}"


def test_a_contract_that_is_given_itself_need_not_be_installed() -> None:
    made_up = _contract()
    made_up.law("holds", lambda: [Point("", 2)])(lambda arena, point: None) if False else None

    @made_up.law("holds", lambda: [Point("plain", 2)])
    def holds(arena: object, point: Point) -> None:
        """It holds."""

    assert contract(made_up) is made_up
    assert [case.id for case in cases(Subject("mine", made_up, print))] == ["made-up/holds[plain-ws2]"]
    assert _problem("made-up").startswith("unknown contract 'made-up'")


# --- what a contract has -----------------------------------------------------------------------------


def test_a_part_is_imported_when_it_is_needed_and_its_error_names_it() -> None:
    assert _contract(rogues="string:digits").part("rogues") == "0123456789"
    for parts, text in (
        ({}, "the contract made-up has no rogues: pass rogues=... to its Contract(...)"),
        (
            {"rogues": "nowhere:ROGUES"},
            "the contract made-up: rogues='nowhere:ROGUES' does not load: "
            "ModuleNotFoundError: No module named 'nowhere'",
        ),
    ):
        with pytest.raises(DeclarationError) as refused:
            _contract(**parts).part("rogues")
        assert str(refused.value) == text


def test_a_rogue_may_name_a_group_for_all_of_its_laws() -> None:
    made_up = _contract(groups={"TRAINED": "trains", "OTHERS": "does not"})
    for law, groups in (("a", ("TRAINED",)), ("b", ()), ("c", ("TRAINED", "OTHERS"))):
        made_up.law(law, list, groups=groups)(_holds)
    rogue = Rogue("rogue", None, ("b", "TRAINED", "c", "OTHER"), "")
    assert made_up.expand(rogue.breaks) == ("b", "a", "c", "OTHER")
    with pytest.raises(DeclarationError, match=r"made-up: the law d: Contract\(groups=\.\.\.\) has no TRAIND$"):
        made_up.law("d", list, groups=("TRAIND",))(_holds)


# --- the example of docs/contracts.md, as an installed distribution --------------------------------

_TESTS = """
    from averaging.contract import CONTRACT, exemplar, halves
    from everyrank.suites import Subject, conformance

    @conformance(Subject("mine.Good", contract="averaging", build=exemplar))
    def test_good(case): case.run()

    @conformance(Subject("mine.Bad", contract=CONTRACT, build=halves))
    def test_bad(case): case.run()
"""

#: Prints how often this process has read the entry points of contracts.
_CONFTEST = """
    import sys

    def pytest_unconfigure(config):
        module = sys.modules.get("everyrank.suites.engine.contract")
        print("entry points were read:", module is not None and module._offers.cache_info().misses)
"""


def _example() -> tuple[str, dict[str, str]]:
    """Return the program of the document, and what its distribution offers."""
    (program,) = [block for block in blocks("docs/contracts.md") if "CONTRACT = Contract(" in block.text]
    (table,) = [block for block in blocks("docs/contracts.md") if "entry-points" in block.text]
    ((group, offered),) = tomllib.loads(table.text)["project"]["entry-points"].items()
    assert group == "everyrank.contracts"
    return program.text, offered


@pytest.fixture(scope="module")
def averaging(module_project: Project) -> Project:
    """Return a project in which the example of the document is installed."""
    program, offered = _example()
    module_project.write("averaging/contract.py", program)
    _write_distribution(module_project.folder, "averaging", offered)
    module_project.write("conftest.py", _CONFTEST)
    return module_project


def _kill_matrix(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return project.python("-m", "everyrank", "kill-matrix", "--contract", *arguments)


def test_its_law_passes_a_good_subject_and_fails_a_bad_subject(averaging: Project) -> None:
    averaging.write("test_averaging.py", _TESTS)
    inner = averaging.run("test_averaging.py", "--law=mean")
    assert inner.code == 1, inner.out
    assert inner.outcomes() == {
        f"test_{name}[averaging/mean[{label}-ws{size}]]": "failed" if (name, size) == ("bad", 3) else "passed"
        for name in ("good", "bad")
        for label in ("floats", "doubles")
        for size in (2, 3)
    }
    bad = inner["test_bad[averaging/mean[floats-ws3]]"]
    assert "[fail] mine.Bad averaging/mean[floats-ws3]" in bad.text
    assert "law: Every rank gets the mean of all ranks' tensors." in bad.text
    assert "the mean is [1.5], but [1.0] is due" in bad.text
    assert "entry points were read: 1" in inner.out


_WITH_MOVES = """law_modules=("averaging.moves",),
    player="averaging.moves:Averaging",
    rogues="""


@pytest.fixture
def moving(module_project: Project, averaging: Project) -> Iterator[Project]:
    """Give the project in which the example has moves, too, and take them away: other tests know one law."""
    program, _ = _example()
    (moves,) = [block for block in blocks("docs/contracts.md") if "class Averaging(Player)" in block.text]
    module_project.write("averaging/contract.py", program.replace("rogues=", _WITH_MOVES, 1))
    module_project.write("averaging/moves.py", moves.text)
    module_project.write("test_moving.py", _TESTS)
    yield module_project
    module_project.write("averaging/contract.py", program)


def test_one_file_gives_a_contract_crossings_that_find_a_bad_subject(moving: Project) -> None:
    inner = moving.run("test_moving.py", "--law=crossings", "--profile=full")
    ends = {(name, size): set() for name in ("good", "bad") for size in (2, 3)}
    for case, end in inner.outcomes().items():
        ends["good" if "test_good" in case else "bad", int(case[-3])].add(end)
    assert ends == {("good", 2): {"passed"}, ("good", 3): {"passed"}, ("bad", 2): {"passed"}, ("bad", 3): {"failed"}}
    bad = next(case for case in inner.outcomes() if "test_bad" in case and "ws3" in case)
    text = inner[bad].text
    assert "mean: move 2, average(): on rank 0: the mean is" in text
    assert "        player.draw(number=" in text
    assert text.count("        player.") == 2


@pytest.mark.parametrize("launcher", ["fork", "spawn"])
def test_of_two_red_crossings_of_a_subject_workers_make_the_first_alone_short(moving: Project, launcher: str) -> None:
    chosen = ("--law=crossings", "--profile=full", "-k", "bad and ws3")
    inner = moving.run("test_moving.py", *chosen, "-n", "2", "--launcher", launcher)
    assert list(inner.outcomes().values()) == ["failed"] * 2
    first, other = sorted(inner.tests.values(), key=lambda test: "may be that of" in test.text)
    assert first.text.count("        player.") == 2
    assert "may be that of" not in first.text
    assert f"its cause may be that of {first.nodeid}, for which the script was made short" in other.text
    assert other.text.count("        player.") > 2
    assert all(
        re.search(r"\n  mean: move \d+, average\(\): on rank 0: the mean is", test.text) for test in (first, other)
    )
    assert f"conformance: {first.nodeid}, and 1 like it: one cause may make all of them red" in inner.out


@pytest.mark.group("packages")
def test_the_laws_of_a_contract_that_is_not_installed_can_be_selected(project: Project) -> None:
    program, _ = _example()
    project.write("averaging/contract.py", program.replace('law("mean"', 'law("mean.of-floats"'))
    project.write("test_averaging.py", _TESTS.replace('"averaging"', "CONTRACT"))
    collect = ("--collect-only", "-q")
    assert project.run("--law=mean.of-floats", *collect).out.count("mean.of-floats[") == 8
    for law, text in (
        ("mean.of-flots", "ERROR: --law: no law is called 'mean.of-flots'. Did you mean 'mean.of-floats'"),
        ("mean.of-floats", "ERROR: no case of mine.Good, mine.Bad fits: --optimizer SGD leaves out 8 cases"),
    ):
        inner = project.run(f"--law={law}", "--optimizer=SGD", *collect)
        assert inner.code == pytest.ExitCode.USAGE_ERROR
        assert text in inner.out, inner.out


@pytest.mark.group("packages")
def test_its_kill_matrix_is_perfect_until_its_rogue_keeps_the_law(averaging: Project) -> None:
    done = _kill_matrix(averaging, "averaging")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "averaging: 1 rogue, 1 law" in done.stdout
    assert "perfect: each rogue is killed by exactly the laws that it names" in done.stdout
    path = averaging.folder / "averaging/contract.py"
    program = path.read_text()
    path.write_text(program.replace("return tensor / 2", "return tensor / dist.get_world_size()"))
    done = _kill_matrix(averaging, "averaging")
    path.write_text(program)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAULT: averaging: halves survives mean" in done.stdout


@pytest.mark.group("packages")
def test_a_kill_matrix_without_rogues_or_of_an_unknown_contract_names_what_is_missing(averaging: Project) -> None:
    path = averaging.folder / "averaging/contract.py"
    program = path.read_text()
    path.write_text(program.replace('    rogues="averaging.contract:ROGUES",\n', ""))
    done = _kill_matrix(averaging, "averaging")
    path.write_text(program)
    assert done.returncode not in (0, 1), done.stdout
    assert "the contract averaging has no rogues: pass rogues=... to its Contract(...)" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    done = _kill_matrix(averaging, "averagin")
    assert done.returncode == 2
    assert all(name in done.stderr for name in ("averagin", *OURS))


def test_a_run_without_a_subject_does_not_look_for_contracts(averaging: Project) -> None:
    averaging.write("test_plain.py", "def test_plain(): pass")
    inner = averaging.run("test_plain.py")
    assert inner.code == 0, inner.out
    assert "entry points were read: False" in inner.out
