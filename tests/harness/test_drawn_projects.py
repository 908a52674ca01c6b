"""Drawn projects: on each rank of one warm world, fixtures are set up and torn down in the order of plain pytest.

No test fails, since a failure ends its world; many are skipped, by marks that the pytest process evaluates, by marks
that ranks evaluate, and by calls. For other seeds, set ``EVERYRANK_TESTS_SEEDS=100-199``.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.inner import Project

SCOPES = ("session", "package", "module", "class", "function")
MARKS = ('skip(reason="marked")', 'skipif(True, reason="so")', 'skipif("True", reason="a text")')
NOTING = """
    import os

    def note(text):
        with open(os.path.join(os.environ["PYTHONPATH"], f"noted-{os.getpid()}"), "a") as file:
            file.write(text + os.linesep)
"""
FIRST, _, LAST = os.environ.get("EVERYRANK_TESTS_SEEDS", "0-5").partition("-")


class Drawn:
    """A project that a seed draws: its files, and the fixtures that are visible where it draws."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = 0
        self.files = {"conftest.py": self.head()}
        wide = [self.fixture("conftest.py", []) for _ in range(3)]
        for file in ("test_one.py", "test_two.py", "package/test_three.py"):
            self.files[file] = self.head() + "pytestmark = pytest.mark.world(2)\n"
            visible = [*wide, self.fixture(file, wide)]
            if self.chance(0.3):
                self.files[file] += "def setup_module(): note('setup_module')\n"
                self.files[file] += "def teardown_module(): note('teardown_module')\n"
            for _ in range(self.random.randint(1, 3)):
                self.tests(file, visible)
        self.files["package/__init__.py"] = ""

    def head(self) -> str:
        return "import pytest\nfrom noting import note\n"

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def fixture(self, file: str, visible: list[tuple[str, str]]) -> tuple[str, str]:
        """Add a fixture to a file; return its name and its scope."""
        name, scope = self.name("fixture"), self.random.choice(SCOPES)
        wider = [other for other, its_scope in visible if SCOPES.index(its_scope) <= SCOPES.index(scope)]
        asks = ", ".join(["request", *self.random.sample(wider, min(len(wider), self.random.randint(0, 2)))])
        more = (", params=[0, 1]" if self.chance(0.3) else "") + (", autouse=True" if self.chance(0.3) else "")
        self.files[file] += f"@pytest.fixture(scope={scope!r}{more})\ndef {name}({asks}):\n"
        self.files[file] += f"    called = '{name} %s ' % getattr(request, 'param', '')\n    note(called + 'up')\n"
        self.files[file] += "    yield\n    note(called + 'down')\n"
        return name, scope

    def tests(self, file: str, visible: list[tuple[str, str]]) -> None:
        """Add a test to a file, or a class of three."""
        in_class = self.chance(0.4)
        if in_class:
            self.files[file] += self.mark("") + f"class {self.name('Test')}:\n"
        for _ in range(3 if in_class else 1):
            name, names = self.name("test_"), [name for name, _ in visible]
            asks = [*(["self"] if in_class else []), *self.random.sample(names, self.random.randint(0, 2))]
            ends = "pytest.skip('called')" if self.chance(0.15) else "pass"
            lines = [f"def {name}({', '.join(asks)}):", f"    note({name!r})", f"    {ends}"]
            indent = "    " if in_class else ""
            self.files[file] += self.mark(indent) + "".join(f"{indent}{line}\n" for line in lines)

    def mark(self, indent: str) -> str:
        return f"{indent}@pytest.mark.{self.random.choice(MARKS)}\n" if self.chance(0.3) else ""


def _noted(project: Project) -> list[list[str]]:
    """Return what each process has noted, and forget it."""
    paths = sorted(project.folder.glob("noted-*"))
    texts = [path.read_text().splitlines() for path in paths]
    for path in paths:
        path.unlink()
    return texts


@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST or FIRST) + 1))
def test_fixtures_live_as_in_plain_pytest(project: Project, seed: int) -> None:
    project.write("noting.py", NOTING)
    for name, text in Drawn(seed).files.items():
        project.write(name, text)
    plain = project.run_plain()
    assert plain.code == 0, plain.out
    (once,) = _noted(project)
    on_ranks = project.run()
    assert on_ranks.outcomes() == plain.outcomes(), on_ranks.out
    assert _noted(project) == [once] * 2
