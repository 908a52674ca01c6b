"""How texts that came from tests are put into lines, tables and terminals."""

from __future__ import annotations

import math
import re
import unicodedata


def plain(text: str, most: int = 0) -> str:
    """On one line, with nothing that a terminal would obey; cut to ``most`` characters."""
    shown = "".join(_shown(one) for one in text.replace("\r\n", " ").replace("\n", " "))
    return shown if not most or len(shown) <= most else shown[: most - 3] + "..."


def _shown(one: str) -> str:
    # Controls, and what turns the reading direction or breaks a line.
    if unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp", "Cs"):
        return " " if one == "\t" else one.encode("unicode_escape", "surrogatepass").decode("ascii")
    return one


def code(text: str, most: int = 0) -> str:
    """As `plain`, in a code span of Markdown, where markup, links, mentions and HTML stay text, also in a table."""
    shown = plain(text, most).replace("|", "\\|") or " "
    runs = [len(run) for run in re.findall("`+", shown)]
    fence = "`" * next(length for length in range(1, len(runs) + 2) if length not in runs)
    space = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{space}{shown}{space}{fence}"


def count(number: int, noun: str) -> str:
    """``1 case``, ``1,200 cases``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """``25 ms``, ``0.25 s``, ``12 s``, ``9 min``, ``3 min 5 s``, ``1 h 40 min``: rounded first, then named.

    The page's ``duration`` (``page/js/dom.js``) says the same.
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


def _two_units(large: int, small: int, name: str, of_small: str) -> str:
    return f"{large} {name}" + (f" {small} {of_small}" if small else "")
