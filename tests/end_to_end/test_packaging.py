"""The published files: a source distribution that can be built and tested, a wheel, a version and a licence."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import everyrank
import pytest
from everyrank.cli import main
from everyrank.reports.schema import text

from ci.files import Unknown, project_files

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "harness": "everyrank",
    **{name: f"everyrank/{name}" for name in ("fixtures", "parity", "reports", "suites")},
}

#: Calls the build backend as pip does; needs no network if setuptools is installed.
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def _build(hook: str, source: Path, target: Path) -> Path:
    target.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD, hook, str(target)], cwd=source, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target / done.stdout.splitlines()[-1]


@dataclass(frozen=True)
class Built:
    tracked: set[str]
    sdist: set[str]
    files: tuple[Path, Path]  # the source distribution and the wheel

    @property
    def wheel(self) -> Path:
        return self.files[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """Build the wheel from the unpacked source distribution, as an installer does."""
    folder = tmp_path_factory.mktemp("built")
    try:
        tracked = {*project_files()}
    except Unknown as reason:
        pytest.skip(str(reason))
    for name in tracked:
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    sdist = _build("build_sdist", folder / "source", folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked")
        held = {member.name.partition("/")[2] for member in archive if member.isfile()}
    (unpacked,) = (folder / "unpacked").iterdir()
    yield Built(tracked, held, (sdist, _build("build_wheel", unpacked, folder / "wheel")))
    shutil.rmtree(folder)


@pytest.mark.group("packages")
def test_the_source_distribution_holds_every_file_of_the_project(built: Built) -> None:
    assert built.tracked - built.sdist == set()
    made = {name for name in built.sdist - built.tracked if not name.startswith("everyrank.egg-info/")}
    assert made == {"PKG-INFO", "setup.cfg"}


@pytest.mark.group("packages")
def test_the_wheel_holds_every_module_and_data_file_of_the_packages_and_nothing_else(built: Built) -> None:
    expected = {"everyrank/reports/schema.json"}  # made of code
    for name in built.tracked:
        folder, _, rest = name.partition("/")
        if folder in PACKAGES:
            expected.add(f"{PACKAGES[folder]}/{rest}")
    with zipfile.ZipFile(built.wheel) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        schema = wheel.read("everyrank/reports/schema.json").decode()
    assert held == expected
    assert schema == text()


@pytest.mark.group("packages")
def test_the_wheel_carries_the_licence_and_names_it(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        (licence,) = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
        (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        assert wheel.read(licence).decode() == (ROOT / "LICENSE").read_text()
        fields = email.message_from_bytes(wheel.read(metadata))
    assert fields["License-Expression"] == "BSD-3-Clause"
    assert fields["Version"] == everyrank.__version__


@pytest.mark.group("packages")
def test_an_index_would_take_both_files_without_a_warning(built: Built) -> None:
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *map(str, built.files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


@pytest.mark.group("packages")
def test_an_extra_brings_what_the_suites_and_adopted_files_import(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        required = email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist", [])
    suites = {re.split("[>; ]", line)[0] for line in required if 'extra == "suites"' in line}
    assert suites == {"pytest-xdist", "pytest-timeout", "expecttest", "numpy"}


def test_the_version_is_printed_without_an_import_of_torch() -> None:
    program = "import sys; from everyrank.cli import main; code = main(['--version']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.stdout == f"everyrank {everyrank.__version__}\nFalse\n", done.stderr


def test_the_newest_version_has_a_section_in_the_changelog() -> None:
    sections = [line[3:] for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert sections[:2] == ["Unreleased", everyrank.__version__]


@pytest.mark.parametrize(
    ("typed", "meant"), [("dif", "diff"), ("rnu", "run"), ("kill_matrix", "kill-matrix"), ("Page", "page")]
)
def test_a_mistyped_command_suggests_the_right_command(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([typed]) == 2
    assert f"everyrank: there is no command {typed!r}; did you mean {meant!r}?\n" in capsys.readouterr().err


def test_an_unknown_command_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zzzzz"]) == 2
    assert capsys.readouterr().err.startswith("everyrank: there is no command 'zzzzz'\nusage: ")


def _completions(line: str) -> set[str]:
    """Return what a shell offers after a line."""
    reading, writing = os.pipe()
    variables = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    # The completions are written to this descriptor, which the shell has opened.
    script = f'exec 8>&{writing}; exec "$0" -c "from everyrank.cli import main; main()"'
    with os.fdopen(reading) as pipe:
        subprocess.run(
            ["bash", "-c", script, sys.executable],
            env=os.environ | variables,
            pass_fds=[writing],
            timeout=240,
            check=True,
        )
        os.close(writing)
        return {word.strip() for word in pipe.read().split("\n")}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("everyrank hi", {"history"}),
        ("everyrank history --re", {"--rebuild"}),
        ("everyrank run --he", {"--help"}),
        ("everyrank diff --format ", {"text", "markdown", "json"}),
    ],
)
def test_a_shell_completes_commands_and_their_options(line: str, offered: set[str]) -> None:
    assert _completions(line) == offered


def test_everyrank_is_never_installed_by_name_as_it_is_on_no_index() -> None:
    """A checkout is installed by its path, and what is missing beside it by its own name."""
    texts = [path for top in (*PACKAGES, "docs") for kind in ("*.py", "*.md") for path in (ROOT / top).rglob(kind)]
    found = [path for path in [*texts, ROOT / "README.md"] if re.search(r"install '?everyrank\b", path.read_text())]
    assert found == []
