"""Make texts from tests safe for lines, tables and terminals, and format numbers."""

from __future__ import annotations

import math
import re
import unicodedata


def plain(text: str, most: int = 0) -> str:
    """Return the text on one line, without control characters, cut to ``most`` characters (0: not cut)."""
    shown = "".join(_shown(letter) for letter in text.replace("\r\n", " ").replace("\n", " "))
    return shown if not most or len(shown) <= most else shown[: most - 3] + "..."


def _shown(letter: str) -> str:
    # Control characters, and characters that change the reading direction or break a line.
    if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp", "Cs"):
        return " " if letter == "\t" else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
    return letter


def code(text: str, most: int = 0) -> str:
    """Return `plain` text as a code span of Markdown. Markup, links, mentions and HTML in it stay text."""
    shown = plain(text, most).replace("|", "\\|") or " "
    runs = [len(run) for run in re.findall("`+", shown)]
    fence = "`" * next(length for length in range(1, len(runs) + 2) if length not in runs)
    space = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{space}{shown}{space}{fence}"


def some(lines: list[str], most: int) -> list[str]:
    """Return the first lines, and the number of the others (0: all lines)."""
    return lines if not most or len(lines) <= most else [*lines[:most], f"... and {len(lines) - most:,} more"]


def duration(seconds: float) -> str:
    """Return a rounded duration: ``25 ms``, ``0.25 s``, ``12 s``, ``9 min``, ``3 min 5 s``, ``1 h 40 min``.

    The page's ``duration`` (``page/js/dom.js``) returns the same texts.
    """
    if seconds <= 0:
        return "0 s"
    milliseconds, short = float(f"{seconds * 1000:.2g}"), float(f"{seconds:.2g}")
    if milliseconds < 0.1:
        return "under 0.1 ms"
    if milliseconds < 100:
        return f"{milliseconds:g} ms"
    if short < 60:
        return f"{short:g} s"
    whole = math.floor(seconds + 0.5)
    if whole < 3600:
        return _two_units(*divmod(whole, 60), "min", "s")
    return _two_units(*divmod(math.floor(seconds / 60 + 0.5), 60), "h", "min")


def _two_units(large: int, small: int, name: str, small_name: str) -> str:
    return f"{large} {name}" + (f" {small} {small_name}" if small else "")


#: From this number of ULPs on, it says no more than that the values differ.
_MOST_ULPS = 1e6


def ulps_text(ulps: float) -> str:
    """Return a number of ULPs, or nothing if it is so large that the relative error says all there is."""
    return f"{ulps:g} ULPs" if ulps < _MOST_ULPS else ""
