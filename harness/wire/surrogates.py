"""Texts that UTF-8 cannot hold, inside of messages.

Python shows each byte of a path that it cannot decode as a lone surrogate. MessagePack has no form for one, so they
travel as private characters of the last plane. Only a message that holds a surrogate is changed, and it is marked; in
such a message, these private characters themselves would become surrogates.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_AWAY = 0x100000
_LONE, _HIDDEN = re.compile("[\ud800-\udfff]"), re.compile("[\U0010d800-\U0010dfff]")


def hide(value: Any) -> Any:
    """Return plain data with each lone surrogate replaced by a character that travels."""
    return _in_texts(value, lambda text: _LONE.sub(lambda match: chr(ord(match[0]) + _AWAY), text))


def show(value: Any) -> Any:
    """Return plain data as it was before ``hide``."""
    return _in_texts(value, lambda text: _HIDDEN.sub(lambda match: chr(ord(match[0]) - _AWAY), text))


def _in_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_in_texts(key, change): _in_texts(member, change) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_texts(member, change) for member in value]
    return value
