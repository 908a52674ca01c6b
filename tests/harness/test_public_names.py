"""The public names of ``everyrank``, which are imported on first use."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys

import everyrank
import pytest

NAMES = [name for name in everyrank.__all__ if name != "__version__"]


def test_there_are_ten() -> None:
    assert len(NAMES) == 10


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_each_with_its_docstring(name: str) -> None:
    text = " ".join(pydoc.render_doc(everyrank, renderer=pydoc.plaintext).replace(" |", "").split())
    value = getattr(everyrank, name)
    head = f"class {name}(" if inspect.isclass(value) else f" {name}("
    first, *_ = inspect.cleandoc(value.__doc__).splitlines()
    assert " ".join(first.split()) in text.partition(head)[2]


def test_a_list_of_them_imports_neither_torch_nor_pytest() -> None:
    program = "import sys, everyrank; assert 'run' in dir(everyrank); print({'torch', '_pytest'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
