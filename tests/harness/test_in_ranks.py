"""All of pytest's features work in the ranks: fixtures, parameters, captures, classes, asserts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import one_run
from tests.inner import Inner, Project

SOURCE = """
    import logging, os, sys, unittest, warnings
    import pytest

    pytestmark = pytest.mark.world(2)
    HERE = os.path.dirname(__file__)

    def note(name, world, text):
        with open(os.path.join(HERE, f"{name}.{world}"), "a") as file:
            file.write(text + "\\n")


    # --- fixtures

    @pytest.fixture(scope="session")
    def of_session():
        made = []
        yield made
        note("session", os.environ["RANK"], f"down after {made}")

    @pytest.fixture(scope="module")
    def of_module():
        made = []
        yield made
        note("module", os.environ["RANK"], f"down after {made}")

    @pytest.fixture
    def of_function(world):
        note("function", world.rank, "up")
        yield world.rank * 10
        note("function", world.rank, "down")

    @pytest.fixture
    def doubled(request):
        return request.param * 2

    @pytest.fixture
    def marked_environment(monkeypatch):
        monkeypatch.setenv("SOME_MARK", "set")

    @pytest.fixture(scope="class")
    def of_class():
        made = []
        yield made
        note("class", os.environ["RANK"], f"down after {made}")

    class TestFixtures:
        def test_first(self, world, of_class, of_module, of_session):
            for made in (of_class, of_module, of_session):
                made.append("first")

        def test_second(self, world, of_class, of_module, of_session):
            for made in (of_class, of_module, of_session):
                made.append("second")
                assert made == ["first", "second"]

    def test_outside_of_the_class(world, of_module, of_session):
        for made in (of_module, of_session):
            made.append("third")
            assert made == ["first", "second", "third"]

    def test_function_fixture(of_function, world):
        assert of_function == world.rank * 10

    @pytest.mark.parametrize("doubled", [1, 2], indirect=True)
    def test_indirect(doubled, request):
        assert doubled == request.node.callspec.params["doubled"] * 2

    @pytest.mark.usefixtures("marked_environment")
    def test_usefixtures(world):
        assert os.environ["SOME_MARK"] == "set"

    def test_monkeypatch_was_undone(world):
        assert "SOME_MARK" not in os.environ

    def test_tmp_path(world, tmp_path):
        (tmp_path / "mine").write_text(str(world.rank))
        world.barrier()
        assert os.listdir(tmp_path) == ["mine"]
        note("tmp_path", world.rank, str(tmp_path))

    def test_getfixturevalue(world, request):
        assert request.getfixturevalue("device").type == "cpu"
        assert request.node.name == "test_getfixturevalue"


    # --- parameters

    def make_local():
        class Local:
            value = 3
        return Local

    @pytest.mark.parametrize("function", [lambda: 3, make_local()().value.__int__], ids=["lambda", "method"])
    def test_lambda(function):
        assert function() == 3

    @pytest.mark.parametrize("cls", [make_local()])
    def test_local_class(cls):
        assert cls().value == 3


    # --- captures

    def test_capsys(world, capsys):
        print("from", world.rank)
        assert capsys.readouterr().out == f"from {world.rank}\\n"

    def test_capfd(world, capfd):
        os.write(1, b"raw %d" % world.rank)
        assert capfd.readouterr().out == f"raw {world.rank}"

    def test_caplog(world, caplog):
        logging.getLogger("some").warning("rank %d speaks", world.rank)
        assert caplog.messages == [f"rank {world.rank} speaks"]

    def test_output(world):
        print("the same on all")
        print("only here", world.rank, file=sys.stderr)
        logging.getLogger("some").error("logged")


    # --- classes

    class TestPlain:
        def setup_method(self):
            self.value = int(os.environ["RANK"])

        def test_setup_method(self, world):
            assert self.value == world.rank

    class TestUnittest(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.pid = os.getpid()

        def setUp(self):
            self.up = True

        def tearDown(self):
            note("unittest", os.environ["RANK"], "down")

        def test_method(self):
            import everyrank
            self.assertTrue(self.up)
            self.assertEqual(self.pid, os.getpid())
            self.assertEqual(everyrank.current_world().size, 2)

    @pytest.mark.world(3)
    class TestMarkedClass:
        def test_class_mark_wins(self, world):
            assert world.size == 3

        @pytest.mark.world(4)
        def test_own_mark_wins(self, world):
            assert world.size == 4


    # --- reports

    def test_assertion_rewriting(world):
        numbers = {"left": [1, 2, world.rank + 5], "right": "text"}
        assert numbers == {"left": [1, 2, 3], "right": "text"}

    def test_assertion_of_a_conftest_helper(world):
        from conftest import check
        check([1, 2, 3])

    def test_property(world, record_property):
        record_property("rank", world.rank)
        record_property("speed", 12)

    def test_warning(world):
        warnings.warn("from every rank", UserWarning)
        warnings.warn(f"from rank {world.rank}", DeprecationWarning)

    @pytest.mark.filterwarnings("error:mine")
    def test_filterwarnings(world):
        with pytest.raises(RuntimeWarning):
            warnings.warn("mine", RuntimeWarning)

    def test_subtest_marks(world, request):
        assert request.node.get_closest_marker("world").args == (2,)
"""

CONFTEST = """
    def check(values):
        assert sum(values) == 7
"""

RED = {"test_assertion_rewriting", "test_assertion_of_a_conftest_helper"}
COUNT = 27


inner = one_run({"conftest.py": CONFTEST, "test_inner.py": SOURCE})


def noted(inner: Inner, name: str, rank: int) -> list[str]:
    return (inner.folder / f"{name}.{rank}").read_text().splitlines()


def test_it_works_in_ranks(inner: Inner) -> None:
    """The inner tests make the assertions, on their ranks."""
    red = {nodeid: test.text for nodeid, test in inner.tests.items() if test.outcome != "passed"}
    assert {nodeid.partition("::")[2] for nodeid in red} == RED, red
    assert len(inner.tests) == COUNT


@pytest.mark.parametrize("rank", [0, 1])
class TestScopes:
    """A wider fixture exists once on each rank, as long as its world serves its scope."""

    def test_a_class_fixture_ends_with_its_class(self, inner: Inner, rank: int) -> None:
        assert noted(inner, "class", rank) == ["down after ['first', 'second']"]

    def test_a_module_fixture_is_set_up_once_and_torn_down(self, inner: Inner, rank: int) -> None:
        assert noted(inner, "module", rank) == ["down after ['first', 'second', 'third']"]

    def test_a_session_fixture_is_torn_down_when_its_world_ends(self, inner: Inner, rank: int) -> None:
        assert noted(inner, "session", rank) == ["down after ['first', 'second', 'third']"]

    def test_a_function_fixture_ends_with_its_test(self, inner: Inner, rank: int) -> None:
        assert noted(inner, "function", rank) == ["up", "down"]

    def test_tear_down_of_unittest_runs(self, inner: Inner, rank: int) -> None:
        assert noted(inner, "unittest", rank) == ["down"]


def test_each_rank_has_its_own_tmp_path(inner: Inner) -> None:
    (first,), (second,) = noted(inner, "tmp_path", 0), noted(inner, "tmp_path", 1)
    assert first != second
    assert Path(first).parent == Path(second).parent


def test_a_failed_assert_is_introspected(inner: Inner) -> None:
    text = inner["test_assertion_rewriting"].text
    assert "E       AssertionError: assert {'left': [1, ...ight': 'text'} == {'left': [1, ...ight': 'text'}" in text
    assert "Differing items:\nE         {'left': [1, 2, 5]} != {'left': [1, 2, 3]}" in text


def test_a_failed_assert_of_a_conftest_helper_is_introspected(inner: Inner) -> None:
    text = inner["test_assertion_of_a_conftest_helper"].text
    assert "assert 6 == 7" in text
    assert "where 6 = sum([1, 2, 3])" in text
    assert "on ranks 0,1" in text


def test_output_is_shown_once_with_its_ranks(inner: Inner) -> None:
    sections = inner["test_output"].sections
    assert sections["Captured stdout call, all 2 ranks"] == "the same on all\n"
    assert sections["Captured stderr call, rank 0"] == "only here 0\n"
    assert sections["Captured stderr call, rank 1"] == "only here 1\n"
    assert "logged" in sections["Captured log call, all 2 ranks"]


def test_properties_are_recorded(inner: Inner) -> None:
    assert inner["test_property"].properties["speed"] == 12
    assert inner["test_property"].properties["rank"] == 0


def test_a_warning_of_all_ranks_is_reported_once(inner: Inner) -> None:
    warnings = [warning for warning in inner.warnings if warning["nodeid"].endswith("test_warning")]
    assert [(warning["warning"], warning["text"]) for warning in warnings] == [
        ("UserWarning", "from every rank"),
        ("DeprecationWarning", "from rank 0"),
        ("DeprecationWarning", "from rank 1"),
    ]


def test_a_handler_from_before_the_ranks_logs_to_the_stderr_of_the_rank(project: Project) -> None:
    """torch has such handlers. The stream of their import is closed in a rank."""
    project.write(
        "test_logs.py",
        """
        import logging
        import pytest

        LOG = logging.getLogger("early")
        LOG.propagate = False
        LOG.addHandler(logging.StreamHandler())

        @pytest.mark.world(2)
        def test_it(world):
            LOG.warning("from rank %d", world.rank)
            assert False
        """,
    )
    sections = project.run()["test_it"].sections
    assert [sections[f"Captured stderr call, rank {rank}"] for rank in range(2)] == ["from rank 0\n", "from rank 1\n"]
