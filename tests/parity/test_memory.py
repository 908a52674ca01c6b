"""Memory of a large model goes back to the system when a pass has ended; a small one costs no time."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
from everyrank.parity.setup import memory


def _trims(elements: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how often the C library gives memory back, once a model with this many elements is no longer used."""
    asked: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=asked.append))
    memory.collect(elements)
    return asked


def test_memory_of_a_large_model_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _trims(100_000_000, monkeypatch) == [0]


def test_a_small_model_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _trims(10_000, monkeypatch) == []


def test_another_c_library_needs_no_such_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    memory.collect(100_000_000)
