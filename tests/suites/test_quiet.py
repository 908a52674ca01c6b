"""A green run is quiet: it does not print what was declared or expected, and prints equal texts once."""

from __future__ import annotations

import pytest
from everyrank.rank.warnings_filed import folded
from everyrank.suites import Subject
from everyrank.suites.errors import DeclarationError

from tests.inner import Inner, Project
from tests.run_files import read


@pytest.mark.parametrize(
    ("text", "alike"),
    [
        ("TCP, 127.0.0.1:41002 to 127.0.0.1:60001", "TCP, 127.0.0.1:... to 127.0.0.1:..."),
        ("listening on [::1]:45021", "listening on [::1]:..."),
        ("<socket.socket fd=12, laddr=('127.0.0.1', 35011)>", "<socket.socket fd=..., laddr=('127.0.0.1', ...)>"),
        ("no answer on port 50123", "no answer on port ..."),
        ("left a child process: pid 4711: sleep 1000", "left a child process: pid ...: sleep 1000"),
        ("subprocess 93021 is still running", "subprocess ... is still running"),
        ("left a thread: Thread-1241 (watch)", "left a thread: Thread-... (watch)"),
        ("<Thing at 0x7f31c0ffee10>", "<Thing at 0x...>"),
    ],
)  # fmt: skip
def test_what_chance_chose_is_no_difference(text: str, alike: str) -> None:
    assert folded(text) == alike


@pytest.mark.parametrize(
    "text",
    [
        "listening on 127.0.0.1:29500",
        "process 3 of 4 said nothing",
        "the process added 12 rows",
        "the mask 0xff",
        "step 40000: loss ('a', 40000)",
    ],
)
def test_a_text_that_a_person_chose_is_printed_unchanged(text: str) -> None:
    assert folded(text) == text


_FORCED = """
    import os
    import socket
    import warnings

    import pytest

    def force(text, category=DeprecationWarning):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(text, category, stacklevel=2)

    @pytest.mark.world(2)
    @pytest.mark.filterwarnings("ignore:old:DeprecationWarning", "ignore:mine::test_inner", "ignore:not mine::other")
    def test_marked(world):
        force("Old news")
        force("older still", UserWarning)
        force("mine")
        force("not mine")

    @pytest.mark.world(2)
    @pytest.mark.parametrize("number", range(2))
    def test_port(world, number):
        with socket.create_server(("127.0.0.1", 0)) as server:
            warnings.warn(f"127.0.0.1:{max(32768, server.getsockname()[1])} is busy")

    @pytest.mark.world(2)
    @pytest.mark.xfail(reason="known")
    def test_expected(world):
        world.kept = socket.create_server(("127.0.0.1", 0))
        assert False

    @pytest.mark.world(2)
    def test_unexpected(world):
        world.kept = socket.create_server(("127.0.0.1", 0))
"""


@pytest.fixture(scope="module")
def forced(module_project: Project) -> Inner:
    text = _FORCED.replace("world.kept", "os.kept")
    module_project.write("test_inner.py", text)
    return module_project.run("--run-file=run.jsonl")


def _warned(inner: Inner, test: str) -> list[str]:
    return [each["text"] for each in inner.warnings if each["nodeid"].partition("[")[0].endswith(f"::{test}")]


def test_a_mark_hides_what_is_raised_whatever_the_filters_say_and_nothing_else(forced: Inner) -> None:
    assert _warned(forced, "test_marked") == ["older still", "not mine"]


def test_warnings_that_differ_by_a_port_are_one_warning(forced: Inner) -> None:
    assert _warned(forced, "test_port") == ["127.0.0.1:... is busy"] * 2
    assert forced.out.count("UserWarning: 127.0.0.1:... is busy") == 1


def test_leaks_of_a_known_failure_are_in_its_report_and_no_warning(forced: Inner) -> None:
    assert _warned(forced, "test_expected") == []
    left = {leak["kind"] for leak in read(forced.folder / "run.jsonl")["test_expected"]["leaks"]}
    assert left == {"socket"}
    (leak,) = _warned(forced, "test_unexpected")
    assert leak.startswith("ranks 0,1 left a socket: TCP, listening on 127.0.0.1:..., opened at test_inner.py:")


# --- subjects ----------------------------------------------------------------------------------------

_SUBJECTS = """
    import warnings

    from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
    from everyrank.suites import Subject, conformance

    class Loud(RpcOptimizer):
        def __init__(self, *args, **kwargs):
            warnings.warn("mylib is old", DeprecationWarning)
            super().__init__(*args, **kwargs)

        def step(self, context_id):
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn("step is older", DeprecationWarning)
                warnings.warn("step is strange", UserWarning)
            super().step(context_id)

    DECLARED = ("ignore:mylib is old:DeprecationWarning", "ignore:step is older:DeprecationWarning")

    @conformance(Subject("declares", contract="rpc-optimizer", build=Loud, warns=DECLARED))
    def test_declares(case): case.run()
"""


@pytest.mark.parametrize(
    "options", [(), ("-p", "no:warnings", "--strict-markers")], ids=["with warnings", "without warnings"]
)
def test_declared_warnings_of_a_subject_are_not_printed_and_fail_nothing(
    project: Project, options: tuple[str, ...]
) -> None:
    project.write("test_inner.py", _SUBJECTS)
    errors = () if options else ("-W", "error::DeprecationWarning:test_inner")
    inner = project.run("--law=state.kept", *errors, *options)
    assert list(inner.outcomes().values()) == ["passed"], inner.out
    assert _warned(inner, "test_declares") == ([] if options else ["step is strange"] * 6)


@pytest.mark.parametrize(
    ("warning", "reason"),
    [
        ("error:mine:UserWarning", "write 'ignore:the start of its text:Category', not 'error:mine:UserWarning'"),
        ("ignore::DeprecationWarning", "a declared warning is ignored, and is named by its text"),
        ("ignore:mine:NoWarning", "is not a filter of warnings: "),
        ("ignore:mine:nowhere.NoWarning", "is not a filter of warnings: No module named 'nowhere'"),
        ("ignore:(:UserWarning", "is not a filter of warnings: "),
        ("hide:mine", "is not a filter of warnings: "),
    ],
)
def test_a_declared_warning_that_hides_too_much_or_cannot_be_read_is_refused(warning: str, reason: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        Subject("any", contract="rpc-optimizer", build=print, warns=(warning,))
    assert reason in str(refused.value)
