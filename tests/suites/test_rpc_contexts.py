"""Contexts of distributed autograd are closed on their owners later than on their client."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.suites.rpc_optimizer import contexts


def test_all_owners_are_asked_until_they_know_that_a_context_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {1: [True, True, False], 2: [False]}

    def on(owner: int, function: Any, context_id: int) -> bool:
        assert (function, context_id) == (contexts.knows, 7)
        return answers[owner].pop(0)

    monkeypatch.setattr(contexts, "on", on)
    contexts.wait_until_closed(7, [1, 2])
    assert answers == {1: [], 2: []}
