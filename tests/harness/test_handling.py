"""The exception that the main thread is handling, as everyrank.rank.handling finds it."""

from __future__ import annotations

import pytest
from everyrank.rank.handling import handled


class Loud(Exception):
    def __str__(self) -> str:
        raise AssertionError("only the rank's own thread may run this")


def fails(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "brief"),
    [
        (ValueError("bad batch"), "ValueError: bad batch"),
        (ValueError("two\nlines"), "ValueError: two lines"),
        (KeyError("key"), "KeyError: 'key'"),
        (ValueError(), "ValueError"),
        (ValueError([1]), "ValueError"),  # a list may hold anything
        (Loud("text"), "Loud"),
    ],
)
def test_an_exception_is_named_in_one_line(error: Exception, brief: str) -> None:
    try:
        fails(error)
    except Exception:
        found = handled()
    assert found is not None
    assert found.brief == brief
    line = fails.__code__.co_firstlineno + 1
    assert found.location == f"tests/harness/test_handling.py:{line}"
    assert found.beside(found.location) == f"{brief} (:{line})"
    assert found.beside("other.py:7") == f"{brief} ({found.location})"


def test_no_exception_is_handled_after_its_end() -> None:
    try:
        fails(ValueError("ended"))
    except ValueError:
        assert handled() is not None
    assert handled() is None


def test_an_exception_that_a_library_raises_and_handles_is_none_of_the_users() -> None:
    asked: list[object] = []

    namespace: dict[str, object] = {"ask": lambda: asked.append(handled())}
    source = "try:\n    raise ValueError('its own')\nexcept ValueError:\n    ask()"
    exec(compile(source, "<frozen library>", "exec"), namespace)
    assert asked == [None]
