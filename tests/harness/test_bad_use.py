"""Bad use gets one clear message that says what to do, and no traceback of ours."""

from __future__ import annotations

import re
from pathlib import Path

import everyrank
import pytest

from tests.engines import one_run
from tests.inner import Inner, Project

SOURCE = """
    import os, subprocess, sys, unittest
    import pytest
    import everyrank

    @pytest.mark.world(0)
    def test_zero(): pass

    @pytest.mark.world("four")
    def test_four(): pass

    @pytest.mark.world([])
    def test_no_size(): pass

    @pytest.mark.world([2, 2])
    def test_twice(): pass

    @pytest.mark.world(2, gpu=1)
    def test_unknown_keyword(): pass

    @pytest.mark.world(2, 3)
    def test_two_values(): pass

    @pytest.mark.world(2, device="tpu")
    def test_device(): pass

    @pytest.mark.world(2, device="cpu", gpus=2)
    def test_gpus_on_cpu(): pass

    @pytest.mark.world(2, gpus="all")
    def test_all_gpus(): pass

    @pytest.mark.world(2, timeout=0)
    def test_timeout(): pass

    @pytest.mark.world(2, timeout=float("inf"))
    def test_endless(): pass

    @pytest.mark.world(2, fresh="yes")
    def test_fresh(): pass

    @pytest.mark.world(2, spread=1)
    def test_spread(): pass

    @pytest.mark.world(2, backend=3)
    def test_backend_number(): pass

    @pytest.mark.world(2, backend="carrier-pigeon")
    def test_unknown_backend(process_group): pass

    @pytest.mark.world(2, backend="glooo")
    def test_misspelt_backend(process_group): pass

    @pytest.mark.world(0)
    class TestMarkedClass:
        def test_zero_on_the_class(self): pass

    class TestUnittest(unittest.TestCase):
        @pytest.mark.world([1, 2])
        def test_unittest_sizes(self): pass

    class TestByClass:
        everyrank_world = True
        world_size = "many"
        def test_size_of_class(self): pass

    class TestBroken:
        everyrank_world = True
        def test_no_size_of_class(self): pass

    def test_list_added_late(): pass

    @pytest.fixture(scope="session")
    def wide(world): pass

    def test_session_fixture(wide): pass

    @pytest.fixture(scope="module")
    def middle(process_group): pass

    @pytest.fixture(scope="session")
    def outer(request):
        return request.getfixturevalue("world")

    @pytest.fixture
    def inner(middle): pass

    def test_module_fixture_behind_another(inner): pass

    def test_session_fixture_at_run_time(outer): pass

    def test_asked_late(request):
        request.getfixturevalue("process_group")

    @pytest.mark.rank_fixtures("proces_group")
    def test_rank_fixture_misspelt(world, request): pass

    def test_no_world_here():
        everyrank.current_world()

    @pytest.mark.world(2)
    def test_nested():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_nested.py"]
        nested = subprocess.run(command, capture_output=True, text=True)
        assert nested.returncode == 4, nested.stdout
        pytest.fail(nested.stderr, pytrace=False)

    @pytest.mark.world(2)
    def test_single_process_tests_nest():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_nested.py", "-k", "single"]
        subprocess.run(command, check=True)

    @pytest.mark.world(2)
    def test_good(world): pass

    def test_single(): pass
"""

CONFTEST = """
    import pytest

    class Line(pytest.Item):
        def runtest(self): pass

    class Lines(pytest.File):
        def collect(self):
            yield Line.from_parent(self, name="first line")

    def pytest_collect_file(file_path, parent):
        if file_path.suffix == ".lines":
            return Lines.from_parent(parent, path=file_path)

    def pytest_collection_modifyitems(items):
        for item in items:
            if isinstance(item, Line):
                item.add_marker(pytest.mark.world(2))
            if item.name == "test_list_added_late":
                item.add_marker(pytest.mark.world([1, 2]))
"""

NESTED = """
    def test_on_ranks(world): pass
    def test_single(): pass
"""

FINE = {"test_good", "test_single", "test_single_process_tests_nest"}


inner = one_run(
    {"conftest.py": CONFTEST, "test_inner.py": SOURCE, "test_nested.py": NESTED, "some.lines": "first line\n"},
    *("test_inner.py", "some.lines"),
)


def test_no_other_test_is_affected(inner: Inner) -> None:
    """A misused test is one failure; the rest of its file runs."""
    assert {name for name, outcome in inner.outcomes().items() if outcome == "passed"} == FINE
    assert not {name for name, outcome in inner.outcomes().items() if outcome == "skipped"}


def test_no_traceback_of_ours_is_shown(inner: Inner) -> None:
    """The exception is the location of a fixture, which pytest itself shows in a ScopeMismatch."""
    module = Path(everyrank.__file__)
    folder, source = ("/".join(path.parent.parts[-2:]) + "/" for path in (module, module.resolve()))
    assert f"{folder}fixtures/plugin.py" in inner.out
    shown = inner.out.replace(f"{folder}fixtures/plugin.py", "")
    assert folder not in shown
    assert source not in shown


def test_the_summary_states_the_mistake(inner: Inner) -> None:
    assert "ERROR test_inner.py::test_zero - the mark world: a world size must be" in inner.out


#: test -> the text that a user reads, without its line breaks.
TEXTS = {
    "test_zero": (
        "the mark world: a world size must be a whole number of ranks, 1 or more, not 0; write world(4), or "
        "world([1, 2, 4]) to run the test once for each"
    ),
    "test_four": (
        "the mark world: a world size must be a whole number of ranks, 1 or more, not 'four'; write world(4), "
        "or world([1, 2, 4]) to run the test once for each"
    ),
    "test_no_size": (
        "the mark world: the list of world sizes is empty; write world(4), or world([1, 2, 4]) to run the "
        "test once for each"
    ),
    "test_twice": (
        "the mark world: a world size is named twice in [2, 2]; write world(4), or world([1, 2, 4]) to run "
        "the test once for each"
    ),
    "test_unknown_keyword": (
        "the mark world: got an unexpected keyword argument 'gpu'; it takes a size, or a list of sizes, and "
        "the keywords device, gpus, gpu_memory, capability, p2p, spread, backend, timeout and fresh"
    ),
    "test_two_values": (
        "the mark world: too many positional arguments; it takes a size, or a list of sizes, and the keywords "
        "device, gpus, gpu_memory, capability, p2p, spread, backend, timeout and fresh"
    ),
    "test_device": "the mark world: device must be 'cpu' or 'cuda', not 'tpu'",
    "test_gpus_on_cpu": "the mark world: gpus=2 asks for GPUs and device='cpu' for none: drop one of them",
    "test_all_gpus": (
        "the mark world: gpus must be the number of GPUs that the world needs, 0 or more, or its share of one "
        "GPU, such as 0.5, not 'all'"
    ),
    "test_timeout": "the mark world: timeout must be a number of seconds above 0, not 0",
    "test_endless": "the mark world: timeout must be a number of seconds above 0, not inf",
    "test_fresh": "the mark world: fresh must be True or False, not 'yes'",
    "test_spread": "the mark world: spread must be True or False, not 1",
    "test_backend_number": "the mark world: backend must be a name such as 'gloo', not 3",
    "test_zero_on_the_class": (
        "the mark world: a world size must be a whole number of ranks, 1 or more, not 0; write world(4), or "
        "world([1, 2, 4]) to run the test once for each"
    ),
    "test_unittest_sizes": (
        "a method of a unittest class takes one world size, since unittest knows no parameters: write a "
        "method for each size, or a plain class"
    ),
    "test_size_of_class": (
        "TestByClass.world_size cannot be used: a world size must be a whole number of ranks, 1 or more, not 'many'"
    ),
    "test_no_size_of_class": (
        "TestBroken.world_size cannot be used: AttributeError: 'TestBroken' object has no attribute 'world_size'"
    ),
    "test_list_added_late": (
        "a mark world that is added after collection takes one size: write the list above the test"
    ),
    "first line": "the mark world is for test functions and methods, not for a Line: take it off",
    "test_session_fixture": (
        "the session fixture 'wide' asks for the rank fixture 'world', which lives in a rank, for one test: "
        "make 'wide' a function fixture"
    ),
    "test_module_fixture_behind_another": (
        "the module fixture 'middle' asks for the rank fixture 'process_group', which lives in a rank, for "
        "one test: make 'middle' a function fixture"
    ),
    "test_asked_late": (
        "a rank fixture was asked for by request.getfixturevalue(), in a test that does not run on ranks: "
        "name the fixture in the test's signature, or mark the test with @pytest.mark.world(n)"
    ),
    "test_rank_fixture_misspelt": (
        "the mark rank_fixtures names 'proces_group', which is none: there are world, process_group, rpc_agent, "
        "warm_rpc_agent, device"
    ),
    "test_no_world_here": (
        "def test_no_world_here(): > everyrank.current_world() E everyrank.errors.MisuseError: this process "
        "is not a rank of a world: mark the test with @pytest.mark.world(n), or ask for the fixture `world` "
        "test_inner.py:99: MisuseError"
    ),
    "test_nested": (
        "on ranks 0,1 ERROR: worlds do not nest: this pytest runs inside a rank of "
        "'test_inner.py::test_nested', and has multi-rank tests itself. Start it from a single-process test."
    ),
}


def words(text: str) -> str:
    return " ".join(re.split(r"\n-+ to repeat", text)[0].split())


@pytest.mark.parametrize("test", TEXTS)
def test_a_mistake_has_one_clear_text(inner: Inner, test: str) -> None:
    assert words(inner[test].text) == TEXTS[test]


@pytest.mark.parametrize(
    ("test", "name", "advice"),
    [
        ("test_unknown_backend", "carrier-pigeon", "register your own when the test file is imported"),
        ("test_misspelt_backend", "glooo", "did you mean 'gloo'?"),
    ],
)
def test_an_unknown_backend_is_reported_with_those_that_are_known(
    inner: Inner, test: str, name: str, advice: str
) -> None:
    known = rf"the backend '{name}' is not known to this torch, which knows [^:]*gloo[^:]*: {re.escape(advice)}"
    assert re.fullmatch(known, words(inner[test].text))


def test_a_session_fixture_that_asks_at_run_time_gets_pytests_own_message(inner: Inner) -> None:
    text = "ScopeMismatch: You tried to access the function scoped fixture world"
    assert text in inner["test_session_fixture_at_run_time"].text


def test_a_mark_on_a_fixture_is_refused(project: Project) -> None:
    """pytest itself refuses it."""
    fixture = "import pytest\n\n@pytest.mark.world(2)\n@pytest.fixture\ndef some(): pass\n\ndef test_it(some): pass\n"
    project.write("test_inner.py", fixture)
    assert "Marks cannot be applied to fixtures" in project.run().out
