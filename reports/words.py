"""How texts that came from tests are put into lines, tables and terminals."""

from __future__ import annotations

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
    """``3 ms``, ``0.25 s``, ``12 s``, ``3 min 5 s``."""
    if seconds < 0.01:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 100:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
