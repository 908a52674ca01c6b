"""The kit describes an error of a subject on one line, whichever rank it comes from."""

from __future__ import annotations

import pytest
from everyrank.suites.arena.subject_errors import in_a_line, subject_acts
from everyrank.suites.errors import BrokenAdapter, Deviation

FAR = """\
On WorkerInfo(id=1, name=worker1):
ValueError('a bad step')
Traceback (most recent call last):
  File "/home/me/optimizer.py", line 4, in step
    raise ValueError("a bad step")
ValueError: a bad step
"""

# An error that has passed through two ranks.
FARTHER = f"""\
ValueError: {FAR}
At:
  /venv/lib/python3.12/site-packages/torch/distributed/rpc/internal.py(236): _handle_exception
"""


class Refused(Exception):
    """An error whose name does not end in Error."""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a bad step"), "ValueError: a bad step"),
        (ValueError("a bad step\nand why"), "ValueError: a bad step"),
        (ValueError(), "ValueError: "),
        (KeyError("lr"), "KeyError: 'lr'"),
        (KeyError(), "KeyError: "),
        (ValueError(FAR), "ValueError: a bad step"),
        (ValueError(FARTHER), "ValueError: a bad step"),
        (KeyError(FAR.replace("ValueError", "KeyError")), "KeyError: a bad step"),
        (Exception(FAR.replace("ValueError", "Exception")), "Exception: a bad step"),
        (Refused(FAR.replace("ValueError", "Refused")), "Refused: a bad step"),
        (RuntimeError(FAR), "RuntimeError: ValueError: a bad step"),
        (RuntimeError("once\ntorch.OutOfMemoryError: no room"), "RuntimeError: torch.OutOfMemoryError: no room"),
    ],
)
def test_an_error_is_described_on_one_line(error: Exception, line: str) -> None:
    assert in_a_line(error) == line
    with pytest.raises(Deviation) as raised, subject_acts():
        raise error
    assert str(raised.value) == f"raised {line}"
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [Deviation("off"), BrokenAdapter("no step"), KeyboardInterrupt()])
def test_an_error_of_the_kit_is_not_changed(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, subject_acts():
        raise error
    assert raised.value is error
