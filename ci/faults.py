"""Plant faults in the product, one at a time: for each, the tests that it names must fail.

    python -m ci.faults [--no-control] [-j JOBS] [--within SECONDS] [NAME ...]

The faults stand in faults.toml: each replaces a part of one line. Each is planted in a copy of the checkout, which is
installed in a copy of this environment, so that it reaches every interpreter that a test starts. The control runs all
named tests without a fault first. Exits with 1 unless every fault is red.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from everyrank.model.toml import tomllib

from ci.files import project_files

ROOT = Path(__file__).parents[1]
FAULTS = Path(__file__).with_suffix(".toml")

#: A process that a test has started, in whatever session, has this variable with the folder of its copy.
_MARKER = "FAULTS_COPY"
#: These would let the copy import the checkout, or its interpreters compile everything again.
_NOT_INHERITED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS", "VIRTUAL_ENV")
_SITE = Path(sysconfig.get_paths()["purelib"])


@dataclass(frozen=True)
class Fault:
    """One mistake in the product, and the tests that see it."""

    name: str
    mistake: str
    file: str
    text: str
    put: str
    tests: tuple[str, ...]

    @property
    def source(self) -> str:
        """Its file as it is in the checkout; empty if there is no such file."""
        file = ROOT / self.file
        return file.read_text() if file.exists() else ""

    def planted(self, source: str) -> str:
        """Return the source of its file with the fault. The text must occur exactly once, within a line."""
        times = source.count(self.text)
        if times != 1 or "\n" in self.text + self.put:
            raise SystemExit(
                f"{FAULTS.name}: {self.name}: its text occurs {times} times in {self.file}, and must occur once, in "
                "one line: plant the same mistake in the code as it is now"
            )
        return source.replace(self.text, self.put)


@dataclass(frozen=True)
class Ended:
    """How the tests of one copy ended. The code is None if they were still running at the limit."""

    code: int | None
    output: str
    seconds: float

    @property
    def verdict(self) -> str:
        """Return red if a test failed, GREEN if none did, and otherwise why this shows nothing."""
        if self.code is None:
            return "hung"
        if self.code == 1 and "ERROR collecting" not in self.output:
            return "red"
        return "GREEN" if self.code == 0 else f"broken: pytest ended with {self.code}"

    @property
    def first_failure(self) -> str:
        """Return the test that failed first, as pytest's summary names it."""
        lines = (line.split(" - ")[0] for line in self.output.splitlines())
        return next((line for line in lines if line.startswith(("FAILED ", "ERROR "))), "")


def read_faults(names: Sequence[str] = ()) -> list[Fault]:
    """Return the faults of these names, or all, in the order of the file."""
    with FAULTS.open("rb") as file:
        tables = tomllib.load(file)["fault"]
    faults = [Fault(**{**table, "tests": tuple(table["tests"])}) for table in tables]
    if unknown := set(names) - {fault.name for fault in faults}:
        raise SystemExit(f"{FAULTS.name} has no fault {', '.join(sorted(unknown))}")
    return [fault for fault in faults if not names or fault.name in names]


# --- a copy of the checkout, and of the environment in which it is installed -----------------------------


def _folders() -> dict[str, str]:
    """Return which folder of the project each package is in, as setup.py has it."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    (table,) = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FOLDERS"
    ]
    folders: dict[str, str] = ast.literal_eval(table)
    return folders


class Copy:
    """A checkout and an environment of its own, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree, self.package, self.environment = folder / "tree", folder / "package", folder / "environment"

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def write_checkout(self) -> None:
        """Copy all files that git tracks or would track, and link those of the package as the development install."""
        files = list(map(Path, project_files(untracked=True)))
        for file in files:
            _copy(ROOT / file, self.tree / file)
        for name, folder in _folders().items():
            for file in (file for file in files if file.parts[0] == folder):
                link = self.package / name.replace(".", "/") / file.relative_to(folder)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(os.path.relpath(self.tree / file, link.parent))
        subprocess.run([sys.executable, "-m", "compileall", "-q", self.package], check=True)

    def write_copy_of(self, other: Copy) -> None:
        """Copy another copy's checkout; compiled files fit, since times of change are copied, too."""
        for name in ("tree", "package"):
            shutil.copytree(other.folder / name, self.folder / name, symlinks=True)

    def write_environment(self) -> None:
        """Make a virtual environment with links to all that this one has, but with the copy for the project."""
        if sys.prefix == sys.base_prefix:
            raise SystemExit("run this in the virtual environment of the project: make faults")
        site = self.environment / _SITE.relative_to(sys.prefix)
        site.mkdir(parents=True)
        for entry in _SITE.iterdir():
            if not (entry.suffix == ".pth" and "everyrank" in entry.name):
                (site / entry.name).symlink_to(entry)
        (site / "everyrank-copy.pth").write_text(f"{self.package}\n")
        _copy(Path(sys.prefix, "pyvenv.cfg"), self.environment / "pyvenv.cfg")
        self.python.parent.mkdir()
        for program in Path(sys.prefix, "bin").iterdir():
            self._write_program(program)

    def _write_program(self, program: Path) -> None:
        copied, old = self.python.with_name(program.name), os.fsencode(f"{sys.prefix}/bin/python")
        if program.is_symlink():
            copied.symlink_to(program.readlink())
        elif program.is_file() and (text := program.read_bytes()).startswith(b"#!") and old in text:
            copied.write_bytes(text.replace(old, os.fsencode(self.python), 1))
            copied.chmod(0o755)
        else:
            copied.symlink_to(program)

    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        path = f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**kept, "PATH": path, "TMPDIR": str(self.folder), _MARKER: str(self.folder)}


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target, follow_symlinks=False)


# --- runs --------------------------------------------------------------------------------------------------


class Runs:
    """Runs tests in copies below one folder, until it is stopped."""

    def __init__(self, folder: Path, within: float) -> None:
        self._folder = folder
        self._within = within
        self.stopped = threading.Event()
        self._template = Copy(folder / "0")
        self._template.write_checkout()
        self._template.write_environment()

    def control(self, tests: Iterable[str], jobs: int) -> Ended:
        """Run tests without a fault."""
        return self._run(self._template, [*tests, "-n", str(jobs)], within=3600)

    def plant(self, number: int, fault: Fault) -> Ended:
        """Run the tests of a fault in a new copy that has it."""
        copy = Copy(self._folder / str(number))
        copy.write_copy_of(self._template)
        copy.write_environment()
        target = copy.tree / fault.file
        target.write_text(fault.planted(target.read_text()))
        try:
            return self._run(copy, fault.tests, self._within)
        finally:
            shutil.rmtree(copy.folder, ignore_errors=True)

    def _run(self, copy: Copy, arguments: Iterable[str], within: float) -> Ended:
        options = ["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", f"--basetemp={copy.folder / 't'}"]
        output, began = copy.folder / "output", time.monotonic()
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [copy.python, "-m", "pytest", *options, *arguments],
                cwd=copy.tree,
                env=copy.variables(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while process.poll() is None and time.monotonic() < began + within:
                    if self.stopped.wait(0.05):
                        break
                code = process.poll()
            finally:
                _end(copy.folder)
                process.wait()
        return Ended(code, output.read_text(errors="replace"), time.monotonic() - began)


def _end(folder: Path) -> None:
    """Kill every process that this copy's tests have started, until none is left."""
    while pids := list(_processes(folder)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _processes(folder: Path) -> Iterator[int]:
    """Yield the living processes that have this copy's marker."""
    marker = f"{_MARKER}={folder}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it is gone, or another user's
            if marker in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                yield int(name)


# --- the command ------------------------------------------------------------------------------------------


def main(faults: Sequence[Fault], jobs: int, within: float, control: bool) -> int:
    for fault in faults:
        fault.planted(fault.source)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        runs = Runs(Path(folder), within)
        if control and not _report_control(
            runs.control(sorted({test for fault in faults for test in fault.tests}), jobs)
        ):
            return 1
        red = _plant_all(runs, faults, jobs)
    print(f"{red} of {len(faults)} faults are red", flush=True)
    return 0 if red == len(faults) else 1


def _plant_all(runs: Runs, faults: Sequence[Fault], jobs: int) -> int:
    """Return how many faults are red."""
    red = 0
    with ThreadPoolExecutor(jobs) as pool:
        try:
            planted = {pool.submit(runs.plant, number, fault): fault for number, fault in enumerate(faults, 1)}
            for future in as_completed(planted):
                red += _report(planted[future], future.result())
        except BaseException:
            runs.stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return red


def _report(fault: Fault, ended: Ended) -> bool:
    """Print how a fault ended; return whether it is red."""
    is_red = ended.verdict == "red"
    about = ended.first_failure if is_red else f"{fault.file}: {fault.mistake}"
    print(f"{ended.verdict:5} {ended.seconds:6.1f} s  {fault.name}  ({about})", flush=True)
    if not is_red and ended.verdict != "GREEN":
        print(_tail(ended.output), flush=True)
    return is_red


def _report_control(ended: Ended) -> bool:
    print(f"control: {'green' if ended.code == 0 else 'NOT GREEN'}, {ended.seconds:.0f} s", flush=True)
    if ended.code != 0:
        print(_tail(ended.output), flush=True)
    return ended.code == 0


def _tail(output: str) -> str:
    return "\n".join(f"    {line}" for line in output.splitlines()[-30:])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="the faults to plant (default: all)")
    parser.add_argument("--no-control", action="store_true", help="do not run the named tests without a fault first")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="how many faults at a time")
    parser.add_argument("--within", type=float, default=900, help="seconds after which the tests of a fault hang")
    return parser.parse_args()


if __name__ == "__main__":
    options = _arguments()
    try:
        sys.exit(main(read_faults(options.names), options.jobs, options.within, not options.no_control))
    except KeyboardInterrupt:
        sys.exit(130)
