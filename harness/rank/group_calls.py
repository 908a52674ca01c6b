"""Lets others see the calls of torch's process groups: all of torch's functions go through a group's methods.

The functions themselves stay as they are: torch compares them by identity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def wrap(group_class: Any, method: str, around: Callable[..., Any]) -> None:
    """From now on, let ``around(call, group, *arguments)`` make each call of a method, if this torch has it."""
    call = getattr(group_class, method, None)
    if call is None or hasattr(call, "__wrapped__"):
        return

    @functools.wraps(call)
    def wrapped(group: Any, *arguments: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        return around(call, group, *arguments, **options)

    setattr(group_class, method, wrapped)
