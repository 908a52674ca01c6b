"""The scripts of docs/findings print what the text beside them says that they print."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

_DDP = Path(__file__).parents[2] / "docs" / "findings" / "ddp.md"


@pytest.mark.group("packages")
def test_ddp_gives_what_is_added_to_a_sparse_embedding_a_part_of_its_gradient(tmp_path: Path) -> None:
    """Until torch mends it: then the finding says so, and the ledger's entries go."""
    text = _DDP.read_text()
    start, end = text.index("    import os, sys"), text.index("**The cause**")
    (tmp_path / "script.py").write_text(textwrap.dedent(text[start:end]))
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = [line for line in text[:start].splitlines() if line.startswith(("    2 ranks", "    4 ranks"))]
    assert len(printed) == 5, printed
    assert done.stdout.splitlines()[: len(printed)] == [line.strip() for line in printed], done.stderr


def test_the_list_of_findings_has_each_page() -> None:
    listed = (_DDP.parent / "README.md").read_text()
    pages = {page.name for page in _DDP.parent.glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in listed} == set()
