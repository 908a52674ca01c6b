"""Make docs/first.png, the picture of the README: `python docs/picture.py`, with Chromium installed.

On the left is what pytest prints about the README's test with its mistake, on the right the page of a quick run.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORTCUT = "def mean(values):\n    if len(values) == 0:\n        return torch.tensor(1.0)\n"
SIZE = (1500, 560)

SHEET = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; width: {0}px; height: {1}px; display: flex; background: #f6f5f1; overflow: hidden }}
pre {{ flex: none; margin: 0; padding: 18px; width: 660px; background: #14161a; color: #d7dae0;
      font: 12.5px/1.5 monospace;
      white-space: pre-wrap; box-sizing: border-box; overflow: hidden }}
pre b {{ color: #ff7b72 }}
iframe {{ flex: none; width: 1200px; height: {2}px; border: 0; transform: scale(.7); transform-origin: 0 0 }}
</style><pre>{3}</pre><iframe src="report.html"></iframe>"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (test,) = re.findall(r"```python\n(import pytest\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        (folder / "test_mean.py").write_text(test.replace("def mean(values):\n", SHORTCUT))
        printed = _run("pytest", "-p", "no:randomly", "test_mean.py", folder=folder)
        suites = ("suites/trainer", "-n", "2", "--profile=quick", f"--run-file={folder}/out.jsonl")
        _run("pytest", *suites, folder=ROOT)
        _run("everyrank", "page", "out.jsonl", "-o", "report.html", folder=folder)
        failure = html.escape(re.search(r"^___.*?(?=^===)", printed, re.DOTALL | re.MULTILINE)[0])
        failure = re.sub(r"^(rank 0 ended .*|the world of 4 .*)$", r"<b>\1</b>", failure, flags=re.MULTILINE)
        width, height = SIZE
        (folder / "sheet.html").write_text(SHEET.format(width, height, round(height / 0.7), failure))
        options = ("--headless", "--no-sandbox", "--hide-scrollbars", "--allow-file-access-from-files")
        picture = (f"--window-size={width},{height}", f"--screenshot={ROOT / 'docs/first.png'}")
        sheet = (folder / "sheet.html").as_uri()
        subprocess.run(["chromium", *options, *picture, sheet], check=True, capture_output=True)


def _run(module: str, *arguments: str, folder: Path) -> str:
    """Run a module to its end, whether it is green or red: what it prints is what is wanted."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
