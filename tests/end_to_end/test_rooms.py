"""The rooms: each folder is one, no room imports a higher one, and none imports itself in a circle."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "everyrank.suites": "suites",
    "everyrank.fixtures": "fixtures",
    "everyrank.parity": "parity",
    "everyrank.reports": "reports",
    "everyrank": "harness",
}
CONTRACTS = {path.parent.name for path in (ROOT / "suites").glob("*/contract.py") if path.parent.name != "engine"}


def _modules() -> dict[str, Path]:
    found = {}
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


MODULES = _modules()


def room(module: str) -> str:
    """A folder is a room. The modules of a top folder stand alone, and a contract is one room with its laws."""
    for contract in CONTRACTS:
        if module.startswith(f"everyrank.suites.{contract}"):
            return f"everyrank.suites.{contract}"
    is_package = MODULES[module].name == "__init__.py"
    parent = module if is_package else module.rsplit(".", 1)[0]
    return module if parent in FOLDERS else parent


def imports_of(module: str) -> set[str]:
    """Which modules a module imports, inside of functions and for the type checker too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in MODULES else node.module for name in names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found & MODULES.keys()


def arrows() -> dict[str, set[str]]:
    """Which rooms each room imports, lazy imports counted."""
    found = defaultdict(set)
    for module in MODULES:
        found[room(module)] |= {room(name) for name in imports_of(module)} - {room(module)}
    return found


def test_no_room_imports_itself_in_a_circle() -> None:
    try:
        tuple(TopologicalSorter(arrows()).static_order())
    except CycleError as error:
        raise AssertionError(f"rooms import each other in a circle: {' -> '.join(error.args[1])}") from None


def test_no_module_of_suites_imports_itself_in_a_circle() -> None:
    """Inside of a contract, too."""
    ours = [name for name in MODULES if name.startswith("everyrank.suites")]
    graph = {name: imports_of(name) - {name} for name in ours}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(f"modules import each other in a circle: {' -> '.join(error.args[1])}") from None


def test_no_top_folder_imports_a_higher_folder() -> None:
    folder_of = {name: next(top for top in FOLDERS if name == top or name.startswith(f"{top}.")) for name in MODULES}
    may = {
        "everyrank": {"everyrank"},
        "everyrank.fixtures": {"everyrank", "everyrank.fixtures"},
        "everyrank.suites": {"everyrank", "everyrank.fixtures", "everyrank.suites"},
        "everyrank.parity": {"everyrank.suites", "everyrank.parity"},
        # It starts ranks, and writes a run file.
        "everyrank.parity.script": {"everyrank", "everyrank.suites", "everyrank.parity", "everyrank.reports"},
        "everyrank.reports": {"everyrank.reports"},
    }
    for source, targets in arrows().items():
        for target in targets:
            shared = target == "everyrank.model"  # plain data, which every room may import
            assert shared or folder_of[target] in may.get(source, may[folder_of[source]]), (
                f"{source} imports {target}"
            )


def _rows() -> dict[str, str]:
    """The rows of the tables of rooms in docs/design.md: each room's folder, and the text that names its modules."""
    rows = {}
    for line in re.findall(r"^\|.*", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`([\w/]+)/`", cells[0]):
            rows[name if name.split("/")[0] in FOLDERS.values() else f"harness/{name}"] = cells[-1]
        if line.startswith("| `plugin`"):  # what stands in harness/ itself
            rows["harness"] = cells[0]
    return rows


def test_the_design_names_every_module_with_its_room() -> None:
    """But those of the contracts and of the rogues, which are named in other documents or in their own modules."""
    rows = _rows()
    own = [*(f"suites/{contract}" for contract in CONTRACTS), "fixtures/exemplars", "fixtures/rogues"]
    paths = [path.relative_to(ROOT) for path in MODULES.values() if not path.stem.startswith("__")]
    named = {path for path in paths if f"`{path.stem}`" in rows.get(str(path.parent), "")}
    assert [str(path) for path in paths if path not in named and not str(path).startswith(tuple(own))] == []
    stems = {str(path.parent): {path.stem for path in paths} for path in paths}
    assert [room for room in rows if room not in stems] == []
