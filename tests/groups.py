"""Groups of tests: what `pytest tests/` runs of each is its smoke tests, and an option chooses the rest.

``@pytest.mark.group("clusters")`` puts a test into a group. ``@pytest.mark.smoke`` on a test of a group says that it
runs with all else. Tests that ask for the fixture ``browser`` are in their group without a mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

GROUPS = {
    "clusters": "every launcher but fork: clean interpreters, torchrun, Ray, several hosts",
    "browser": "the page in Chromium",
    "draws": "sequences that are drawn of the contracts' moves, carried out on ranks",
    "packages": "what builds packages or needs some installed, the nightly scripts, the programs of findings",
    "parallel": "parity's subjects and their rogues, against a reference that is not parity's",
}
LEFT_OUT = pytest.StashKey["Counter[str]"]()
#: Under this name a worker of xdist tells its controller what it has left out.
OUTPUT = "everyrank_tests_left_out"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--group",
        choices=[*GROUPS, "all"],
        help="run one group of tests whole and nothing else, or all tests. Without it, tests/ is run without its "
        "groups, but for the smoke tests of each; tests in files that are named always run. "
        + "; ".join(f"{name}: {about}" for name, about in GROUPS.items()),
    )


def group_of(item: pytest.Item) -> str | None:
    """Return the name of a test's group, or None."""
    mark = item.get_closest_marker("group")
    if mark is None:
        return "browser" if "browser" in getattr(item, "fixturenames", ()) else None
    (name,) = mark.args
    if name not in GROUPS:
        raise pytest.UsageError(f"{item.nodeid}: there is no group {name!r}; the groups are {', '.join(GROUPS)}")
    return str(name)


def is_chosen(group: str | None, smoke: bool, option: str | None) -> bool:
    """Return whether a test runs that no argument of pytest names."""
    if option is None:
        return group is None or smoke
    return option in ("all", group)


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the tests that run."""
    here, option = Path(__file__).parent, config.getoption("group")
    named = {path for path in _paths(config) if path.is_file()} if option is None else set()

    def runs(item: pytest.Item) -> bool:
        swept = item.path.is_relative_to(here) and item.path not in named
        return not swept or is_chosen(group_of(item), item.get_closest_marker("smoke") is not None, option)

    left_out = [item for item in items if not runs(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        out = set(left_out)
        items[:] = [item for item in items if item not in out]
    if option is None:
        remember(config, Counter(str(group_of(item)) for item in left_out))


def remember(config: pytest.Config, left_out: Counter[str]) -> None:
    """Keep how many tests of each group were left out. The workers of a run all leave out the same."""
    config.stash[LEFT_OUT] = left_out
    if hasattr(config, "workeroutput"):
        config.workeroutput[OUTPUT] = dict(left_out)


def line(left_out: Mapping[str, int]) -> str:
    """Return the line that says what was left out and how to run it."""
    counts = ", ".join(f"{count} of {name}" for name, count in sorted(left_out.items()))
    targets = ", ".join(f"make test-{name}" for name in [*sorted(left_out), "all"])
    return f"tests left out: {counts}; to run them: {targets} (pytest tests/ --group=NAME)"


def _paths(config: pytest.Config) -> list[Path]:
    """Return the paths that pytest was called with."""
    return [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]


def runs_this_folder(config: pytest.Config) -> bool:
    """Return whether the run is one of tests/.

    pytest reads conftest.py for ``--pyargs`` too if it is started in the folder above, as the kill matrix is.
    """
    here = Path(__file__).parent
    return any(path.is_relative_to(here) or here.is_relative_to(path) for path in _paths(config))
