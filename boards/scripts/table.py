"""Print the rows of the board as a table of Markdown: `python boards/scripts/table.py`."""

from __future__ import annotations

from pathlib import Path

import tomllib

VERDICTS = {0: "holds", 1: "parts", 2: "cannot be said"}


def table() -> str:
    """Return the table that docs/boards-scripts.md has."""
    rows = tomllib.loads((Path(__file__).parent / "rows.toml").read_text())["row"]
    lines = ["| script | verdict | first line | cause |", "|---|---|---|---|"]
    for row in rows:
        first = row["first"].removeprefix("2 ranks and one rank: ").replace("|", "\\|")
        lines.append(f"| `{row['run']}` | {VERDICTS[row['exit']]} | {first} | {row.get('cause', '')} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
