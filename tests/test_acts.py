"""How the kit tells of an error that a subject raised: on one line, from wherever it came."""

from __future__ import annotations

import pytest
from everyrank.suites.acts import in_a_line, subject_acts
from everyrank.suites.errors import BrokenAdapter, Deviation

FAR = """\
On WorkerInfo(id=1, name=worker1):
ValueError('a bad step')
Traceback (most recent call last):
  File "/home/me/optimizer.py", line 4, in step
    raise ValueError("a bad step")
ValueError: a bad step
"""

# Where an error has passed through two places.
FARTHER = f"""\
ValueError: {FAR}
At:
  /venv/lib/python3.12/site-packages/torch/distributed/rpc/internal.py(236): _handle_exception
"""


class Refused(Exception):
    """An error that is not named as one."""


@pytest.mark.parametrize(
    ("error", "told"),
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
def test_an_error_is_told_on_one_line(error: Exception, told: str) -> None:
    assert in_a_line(error) == told
    with pytest.raises(Deviation) as raised, subject_acts():
        raise error
    assert str(raised.value) == f"raised {told}"
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [Deviation("off"), BrokenAdapter("no step"), KeyboardInterrupt()])
def test_what_the_kit_says_itself_stays_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, subject_acts():
        raise error
    assert raised.value is error
