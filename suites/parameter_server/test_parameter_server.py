"""``parameter-server``, on torch's example of one, and on the exemplar."""

from __future__ import annotations

from everyrank.suites import conformance
from everyrank.suites.engine.case import Case
from everyrank.suites.parameter_server.subjects import EXAMPLE, EXEMPLAR


@conformance(EXEMPLAR)
def test_exemplar(case: Case) -> None:
    """Our own keeps every law."""
    case.run()


@conformance(EXAMPLE)
def test_torch_example(case: Case) -> None:
    """torch's example."""
    case.run()
