"""Each script of the board does what its row of rows.toml says: the exit code and the first line of the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomllib

HERE = Path(__file__).parent
ROWS: list[dict[str, Any]] = tomllib.loads((HERE / "rows.toml").read_text())["row"]
COMMAND = "import sys; from everyrank.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["run"].replace(" ", "_"))
def test_a_script_does_what_its_row_says(row: dict[str, Any], tmp_path: Path) -> None:
    for package in row.get("needs", []):
        pytest.importorskip(package, reason=f"pip install {package}")
    arguments = row["run"].split()
    script = HERE / "examples" / next(each for each in arguments if each.endswith(".py"))
    (tmp_path / script.name).write_bytes(script.read_bytes())  # unchanged, in a folder in which it may write
    command = [sys.executable, "-c", COMMAND, "parity", "--keep", "kept", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    first = done.stdout.partition("\n")[0].removeprefix(f"everyrank parity: {script.name}, ")
    assert (done.returncode, first) == (row["exit"], row["first"]), done.stdout + done.stderr
