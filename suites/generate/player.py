"""What the references of all contracts have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from everyrank.suites.generate.grammar import Rejected


@contextlib.contextmanager
def reference_acts() -> Iterator[None]:
    """Reject the draw if the reference raises: then the draw proves nothing about the subject."""
    try:
        yield
    except Exception as error:
        raise Rejected(str(error)) from error
