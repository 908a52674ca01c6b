"""Refuse what has grown too large: a file of Python with more than 400 lines, or a class with more than 200.

A larger one knows too much: its second responsibility needs a home of its own. There are no exceptions.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from ci.files import ROOT, project_files

FILE, CLASS = 400, 200


def too_large(name: str, text: str) -> Iterator[str]:
    """Yield what is too large in a file."""
    if (lines := len(text.splitlines())) > FILE:
        yield f"{name} has {lines} lines, of {FILE} at the most"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and (lines := (node.end_lineno or 0) - node.lineno + 1) > CLASS:
            yield f"{name}:{node.lineno}: the class {node.name} has {lines} lines, of {CLASS} at the most"


if __name__ == "__main__":
    names = [name for name in project_files(untracked=True) if name.endswith(".py")]
    sys.exit("\n".join(text for name in names for text in too_large(name, (ROOT / name).read_text())) or 0)
