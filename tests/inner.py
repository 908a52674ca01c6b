"""Run an inner pytest as a user would, in its own process, with its own folder and temp folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.forked import ForkedRun, ForkServers

MARKER = "EVERYRANK_INNER_RUN"

#: A plugin for the inner run. It writes each report and each warning as a line of JSON.
_REPORTER = """
import json, os
import pytest

def pytest_runtestloop():
    if "EVERYRANK_INNER_NATIVE" not in os.environ:
        from everyrank.launch import native
        native.read = lambda pids, within: {}

def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    line = {
        "nodeid": report.nodeid, "when": report.when, "outcome": report.outcome, "text": str(report.longrepr or ""),
        "sections": [list(section) for section in report.sections], "wasxfail": getattr(report, "wasxfail", None),
        "properties": [list(pair) for pair in report.user_properties],
        "message": getattr(getattr(report.longrepr, "reprcrash", None), "message", None),
    }
    with open(os.environ["EVERYRANK_INNER_REPORTS"], "a") as file:
        file.write(json.dumps(line) + "\\n")

def pytest_warning_recorded(warning_message, nodeid):
    if "PYTEST_XDIST_WORKER" in os.environ or "EVERYRANK_NODEID" in os.environ:
        return
    line = {"warning": warning_message.category.__name__, "text": str(warning_message.message), "nodeid": nodeid}
    with open(os.environ["EVERYRANK_INNER_REPORTS"], "a") as file:
        file.write(json.dumps(line) + "\\n")
"""


@dataclass
class InnerTest:
    """One test of an inner run, with the reports that pytest made of it."""

    nodeid: str
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """Return passed, failed, skipped, xfailed, xpassed or error (a failure in setup or teardown)."""
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
        """Return the texts of all failures and skips."""
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
    tests: dict[str, InnerTest]
    warnings: list[dict[str, Any]]
    folder: Path

    def __getitem__(self, name: str) -> InnerTest:
        """Return a test by the end of its node id: ``test_x`` or ``test_x[ws4]``."""
        found = [test for nodeid, test in self.tests.items() if nodeid.split("::", 1)[-1] == name]
        found = found or [test for nodeid, test in self.tests.items() if nodeid.endswith("::" + name)]
        assert len(found) == 1, f"{name}: {len(found)} of {sorted(self.tests)}\n{self.out[-3000:]}"
        return found[0]

    def check(self, name: str, outcome: str, *texts: str) -> None:
        """Assert a test's outcome, and texts of its report; a text after ``^`` is where the report begins."""
        test = self[name]
        assert test.outcome == outcome, test.text
        absent = [text for text in texts if text not in test.text and not ("^" + test.text).startswith(text)]
        assert absent == [], test.text

    def endings(self, test: str) -> dict[str, str]:
        """Return the outcome of each case of a conformance test, by its short id."""
        return {
            result.properties["case"].partition("/")[2]: result.properties["outcome"]
            for nodeid, result in self.tests.items()
            if f"::{test}[" in nodeid
        }

    def outcomes(self) -> dict[str, str]:
        return {nodeid.rsplit("::", 1)[-1]: test.outcome for nodeid, test in self.tests.items()}


def outer_environment() -> dict[str, str]:
    """Return what an inner run gets of the environment of this process."""
    # Variables of a terminal, a CI service or an outer run would change the output of the inner run. torch._dynamo
    # sets the last, and this process may have imported it.
    excluded = (
        "PYTEST",
        "COV_",
        "CI",
        "BUILD_NUMBER",
        "FORCE_COLOR",
        "NO_COLOR",
        "PY_COLORS",
        "TORCHINDUCTOR_CACHE_DIR",
    )
    return {name: value for name, value in os.environ.items() if not name.startswith(excluded)}


class Project:
    """A folder with tests, in which pytest runs."""

    def __init__(self, folder: Path, servers: ForkServers | None = None) -> None:
        self.folder = folder
        self.servers = servers
        self.temp = folder / "tmp"
        self.temp.mkdir(exist_ok=True)
        self.marker = uuid.uuid4().hex
        #: Whether roll calls of a run read C frames: pystack costs more than a test, so only its own test wants it.
        self.native = False
        #: Whether the keeper of spawned ranks may be a fork, too. Its ranks are new processes then, but not clean.
        self.forks_keeper = False
        (folder / "everyrank_inner_reporter.py").write_text(_REPORTER)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def install(self, name: str, group: str, *entries: str) -> None:
        """Install a package with these entry points in this folder, as pip would."""
        self.write(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        self.write(f"{name}-1.0.dist-info/entry_points.txt", "\n".join([f"[{group}]", *entries, ""]))

    def environment(self) -> dict[str, str]:
        return {
            **outer_environment(),
            "COLUMNS": "80",
            "LINES": "24",  # as readline sets it for child processes
            MARKER: self.marker,
            "TMPDIR": str(self.temp),
            "EVERYRANK_LEASES": str(self.folder / "leases"),
            "EVERYRANK_INNER_REPORTS": str(self.folder / "reports.jsonl"),
            "PYTEST_PLUGINS": "everyrank_inner_reporter",  # by `-p` it would be a part of each line "to repeat"
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            **({"EVERYRANK_INNER_NATIVE": "1"} if self.native else {}),
            **({"INNER_INTERPRETERS": "1"} if self.forks_keeper else {}),
        }

    def command(self, *arguments: str) -> list[str]:
        plain = [
            "-p",
            "no:randomly",
            # If trio is installed, Hypothesis imports it, and trio starts a process.
            "-p",
            "no:hypothesispytest",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(self.folder),
        ]
        return [sys.executable, "-m", "pytest", *plain, *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str] | ForkedRun:
        """Start an inner run; end it with ``finish``, or kill it and call ``assert_nothing_left``."""
        (self.folder / "reports.jsonl").write_text("")
        command, environment = self.command(*arguments), self.environment()
        return self.spawn(command, environment)

    def spawn(
        self,
        command: list[str],
        environment: dict[str, str],
        folder: str | Path | None = None,
        new_session: bool = False,
    ) -> subprocess.Popen[str] | ForkedRun:
        """Start a process in this folder or another, with its stderr in its stdout."""
        cwd = Path(folder or self.folder)
        if self.servers and (server := self.servers.find(command, self.folder, environment)):
            return server.start(command, cwd, environment, new_session=new_session)
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=new_session,
            # A shell starts background jobs with SIGINT ignored; the inner run would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def python(
        self,
        *arguments: str,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
        within: float = 240,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python ARGUMENTS`` in this folder or another, and wait for its end."""
        command, cwd = [sys.executable, *arguments], folder or self.folder
        environment = self.environment() if environment is None else environment
        if not self.servers or not (server := self.servers.find(command, self.folder, environment)):
            return subprocess.run(
                command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=within, check=False
            )
        with tempfile.TemporaryFile() as err:
            process = server.start(command, cwd, environment, err.fileno())
            try:
                out, _ = process.communicate(timeout=within)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            err.seek(0)
            return subprocess.CompletedProcess(command, process.wait(), out, err.read().decode())

    def finish(self, process: subprocess.Popen[str] | ForkedRun, within: float = 240) -> Inner:
        try:
            out, _ = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            raise AssertionError(f"the inner run did not end within {within} s:\n{out[-5000:]}") from None
        self.assert_nothing_left()
        tests, warnings = self.results()
        return Inner(process.returncode, out, tests, warnings, self.folder)

    def run(self, *arguments: str) -> Inner:
        """Run pytest in this folder, wait for its end, and assert that it left nothing behind."""
        return self.finish(self.start(*arguments))

    def run_plain(self, *arguments: str) -> Inner:
        """Run pytest in this folder without everyrank, where the mark ``world`` means nothing."""
        self.write(
            "without.py",
            """
            def pytest_configure(config):
                config.addinivalue_line("markers", "world(size): means nothing here")
            """,
        )
        names = ("everyrank", "everyrank-fixtures", "everyrank-suites", "everyrank-reports")
        return self.run("-pwithout", *(f"-pno:{name}" for name in names), *arguments)

    def results(self) -> tuple[dict[str, InnerTest], list[dict[str, Any]]]:
        tests: dict[str, InnerTest] = {}
        warnings = []
        for line in (self.folder / "reports.jsonl").read_text().splitlines():
            data = json.loads(line)
            if "warning" in data:
                warnings.append(data)
            else:
                tests.setdefault(data["nodeid"], InnerTest(data["nodeid"])).reports.append(data)
        return tests, warnings

    def processes(self) -> list[int]:
        """Return the pids of living processes that carry this project's marker."""
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
        """Assert that soon no process and no folder of everyrank is left; ending processes get `within` seconds."""
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
