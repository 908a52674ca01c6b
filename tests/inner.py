"""An inner pytest: what a user would run, in a process, a folder and a temp folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARKER = "EVERYRANK_INNER_RUN"

#: Loaded into the inner run: writes each report as a line of JSON.
_TELL = """
import json, os
import pytest

def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    line = {
        "nodeid": report.nodeid, "when": report.when, "outcome": report.outcome, "text": str(report.longrepr or ""),
        "sections": [list(one) for one in report.sections], "wasxfail": getattr(report, "wasxfail", None),
        "properties": [list(one) for one in report.user_properties],
    }
    with open(os.environ["EVERYRANK_INNER_TOLD"], "a") as file:
        file.write(json.dumps(line) + "\\n")

def pytest_warning_recorded(warning_message, nodeid):
    if "PYTEST_XDIST_WORKER" in os.environ or "EVERYRANK_NODEID" in os.environ:
        return
    line = {"warning": warning_message.category.__name__, "text": str(warning_message.message), "nodeid": nodeid}
    with open(os.environ["EVERYRANK_INNER_TOLD"], "a") as file:
        file.write(json.dumps(line) + "\\n")
"""


@dataclass
class Told:
    """What the inner run told of one test."""

    nodeid: str
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """passed, failed, skipped, xfailed, xpassed or error (in setup or teardown)."""
        for report in self.reports:
            if report["outcome"] == "failed":
                return "failed" if report["when"] == "call" else "error"
        for report in self.reports:
            if report["wasxfail"] is not None:
                return "xfailed" if report["outcome"] == "skipped" else "xpassed"
            if report["outcome"] == "skipped":
                return "skipped"
        return "passed"

    @property
    def text(self) -> str:
        """All failure and skip texts."""
        return "\n".join(report["text"] for report in self.reports if report["text"])

    @property
    def sections(self) -> dict[str, str]:
        return {name: content for report in self.reports for name, content in report["sections"]}

    @property
    def properties(self) -> dict[str, Any]:
        return {name: value for report in self.reports for name, value in report["properties"]}


@dataclass
class Inner:
    """A finished inner run."""

    code: int
    out: str
    tests: dict[str, Told]
    warnings: list[dict[str, Any]]
    folder: Path

    def __getitem__(self, name: str) -> Told:
        """A test by the end of its node id: ``test_x`` or ``test_x[ws4]``."""
        found = [told for nodeid, told in self.tests.items() if nodeid.split("::", 1)[-1] == name]
        found = found or [told for nodeid, told in self.tests.items() if nodeid.endswith("::" + name)]
        assert len(found) == 1, f"{name}: {len(found)} of {sorted(self.tests)}\n{self.out[-3000:]}"
        return found[0]

    def outcomes(self) -> dict[str, str]:
        return {nodeid.rsplit("::", 1)[-1]: told.outcome for nodeid, told in self.tests.items()}


class Project:
    """A folder with tests in it, in which to run pytest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temp = folder / "tmp"
        self.temp.mkdir(exist_ok=True)
        self.marker = uuid.uuid4().hex
        (folder / "everyrank_inner_tell.py").write_text(_TELL)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def environment(self) -> dict[str, str]:
        # What a terminal, a CI service or an outer run says would change what the inner run writes.
        apart = ("PYTEST", "COV_", "CI", "BUILD_NUMBER", "FORCE_COLOR", "NO_COLOR", "PY_COLORS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(apart)}
        return {
            **kept,
            "COLUMNS": "80",
            MARKER: self.marker,
            "TMPDIR": str(self.temp),
            "EVERYRANK_LEASES": str(self.folder / "leases"),
            "EVERYRANK_INNER_TOLD": str(self.folder / "told.jsonl"),
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def command(self, *arguments: str) -> list[str]:
        plain = [
            "-p",
            "no:randomly",
            # Hypothesis imports trio, where that is installed, and trio starts a process.
            "-p",
            "no:hypothesispytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "everyrank_inner_tell",
            "--rootdir",
            str(self.folder),
        ]
        return [sys.executable, "-m", "pytest", *plain, *arguments]

    def start(self, *arguments: str, **keywords: Any) -> subprocess.Popen[str]:
        """Start an inner run; end it with ``finish``, or kill it and call ``assert_nothing_left``."""
        (self.folder / "told.jsonl").write_text("")
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Started in the background by a shell, this run ignores Ctrl-C, and so would all that it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **keywords,
        )

    def finish(self, process: subprocess.Popen[str], within: float = 240) -> Inner:
        try:
            out, _ = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            raise AssertionError(f"the inner run did not end within {within} s:\n{out[-5000:]}") from None
        self.assert_nothing_left()
        tests, warnings = self.told()
        return Inner(process.returncode, out, tests, warnings, self.folder)

    def run(self, *arguments: str) -> Inner:
        """Run pytest here and wait; nothing may be left of it."""
        return self.finish(self.start(*arguments))

    def told(self) -> tuple[dict[str, Told], list[dict[str, Any]]]:
        tests: dict[str, Told] = {}
        warnings = []
        for line in (self.folder / "told.jsonl").read_text().splitlines():
            data = json.loads(line)
            if "warning" in data:
                warnings.append(data)
            else:
                tests.setdefault(data["nodeid"], Told(data["nodeid"])).reports.append(data)
        return tests, warnings

    def processes(self) -> list[int]:
        """Living processes that carry this project's marker."""
        wanted = f"{MARKER}={self.marker}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    with open(f"/proc/{name}/environ", "rb") as file:
                        if wanted in file.read().split(b"\0"):
                            found.append(int(name))
                except OSError:
                    continue
        return found

    def assert_nothing_left(self, within: float = 30) -> None:
        """No process and no folder of everyrank's, as soon as the dying have died."""
        until = time.monotonic() + within
        while (left := (self.processes(), self._folders())) != ([], []) and time.monotonic() < until:
            time.sleep(0.02)
        if left != ([], []):
            commands = [_command(pid) for pid in left[0]]
            for pid in left[0]:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"left behind: processes {commands}, folders {left[1]}")

    def _folders(self) -> list[str]:
        return sorted(path.name for path in self.temp.iterdir() if path.name.startswith("everyrank"))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except OSError:
        return f"{pid} (gone)"
