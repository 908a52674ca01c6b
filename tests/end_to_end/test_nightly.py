"""The nightly run, as its scripts do it, on the CPU; and its files as those who know their kind read them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from everyrank import options

from tests.documents import blocks
from tests.inner import Project
from tests.run_files import read

pytestmark = pytest.mark.group("packages")

_ROOT = Path(__file__).parents[2]
_SCRIPTS = [_ROOT / ".ci/run", *sorted(path for path in (_ROOT / "ci").iterdir() if path.suffix in (".sh", ".slurm"))]
_BIN = Path(sys.executable).parent

_GREEN = """
    import pytest

    @pytest.mark.world(2)
    def test_one(): pass

    @pytest.mark.world(2)
    def test_two(): pass

    def test_of_one_process(): pass
"""


@dataclass
class Nights:
    """A folder of nights, a project to spend them on, and the folder of the programs."""

    project: Project
    bin: Path

    @property
    def folder(self) -> Path:
        return self.project.folder / "nights"

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def run(self, *arguments: str, gpus: int = 0, **environment: str) -> tuple[int, str]:
        """One night: how it ended, and its summary."""
        plain = ["-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", str(self.project.folder)]
        command = [str(_ROOT / "ci/nightly.sh"), str(gpus), str(self.folder), *plain, *arguments]
        ended = subprocess.run(
            command, cwd=self.project.folder, env=self.environment(**environment), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
        )  # fmt: skip
        self.project.assert_nothing_left()
        summary = self.folder / "summary.md"
        return ended.returncode, summary.read_text() if summary.exists() else ended.stdout

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in self.project.environment().items() if not name.startswith("GITHUB_")}
        return {**kept, "BIN": f"{self.bin}/", **more}


@pytest.fixture
def nights(project: Project) -> Nights:
    project.write("test_inner.py", _GREEN)
    programs = project.folder / "bin"
    assert project.servers
    server = project.servers.find([sys.executable], project.folder, project.environment())
    assert server
    server.write_programs(programs, "pytest", "everyrank")
    return Nights(project, programs)


def _break(nights: Nights, test: str) -> None:
    nights.project.write("test_inner.py", _GREEN.replace(f"def {test}(): pass", f"def {test}(): assert 0"))


def test_the_first_night_keeps_its_run_file_and_a_page(nights: Nights) -> None:
    nights.bin = _BIN
    code, summary = nights.run()
    assert code == 0
    assert "The first night: there is nothing to compare with." in summary
    (file,) = nights.files
    assert read(file).outcomes == {"test_one": "pass", "test_two": "pass"}
    assert "<html" in (nights.folder / "report.html").read_text()


@pytest.mark.smoke
def test_a_regression_since_last_night_fails_and_is_reported(nights: Nights) -> None:
    assert nights.run()[0] == 0
    _break(nights, "test_two")
    code, summary = nights.run()
    assert code == 1
    assert "test_two" in summary
    assert "test_one" not in summary
    assert len(nights.files) == 2


def test_a_night_like_the_last_night_does_not_fail_but_is_not_called_green(nights: Nights) -> None:
    _break(nights, "test_two")
    assert nights.run()[0] == 1
    code, summary = nights.run()
    assert code == 0
    assert "Not green, and no worse than the night before." in summary
    assert "red since" in summary


def test_cases_that_are_gone_fail_the_night_unless_they_may_be(nights: Nights) -> None:
    assert nights.run()[0] == 0
    code, summary = nights.run("-k", "not two")
    assert code == 1
    assert "1 case gone" in summary
    nights.files[-1].unlink()
    assert nights.run("-k", "not two", ALLOW_GONE="1")[0] == 0


def test_a_night_that_was_killed_is_not_what_the_next_is_compared_with(nights: Nights) -> None:
    assert nights.run()[0] == 0
    (whole,) = nights.files
    killed = whole.with_name("9999-12-31.jsonl")
    killed.write_bytes(whole.read_bytes().splitlines(keepends=True)[0])
    code, summary = nights.run()
    assert code == 0
    compared, _, history = summary.partition("```")
    assert killed.name not in compared
    assert f"left out: {killed.name}" in history
    assert "did not finish" not in summary


def test_older_nights_may_be_compressed(nights: Nights) -> None:
    assert nights.run()[0] == 0
    (first,) = nights.files
    subprocess.run(["gzip", first], check=True)
    _break(nights, "test_two")
    code, summary = nights.run()
    assert code == 1
    assert f"Old: `nights/{first.name}.gz`" in summary.replace(f"{nights.project.folder}/", "")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--no-such-option"], pytest.ExitCode.USAGE_ERROR), (["-k", "nothing"], pytest.ExitCode.NO_TESTS_COLLECTED)],
)
def test_a_run_that_could_not_be_had_fails_as_pytest_did(nights: Nights, arguments: list[str], status: int) -> None:
    assert nights.run()[0] == 0
    code, summary = nights.run(*arguments)
    assert code == status
    assert f"**The run did not finish**: pytest ended with {status:d}." in summary


def test_the_summary_goes_where_github_shows_it(nights: Nights, tmp_path: Path) -> None:
    shown = tmp_path / "shown.md"
    shown.write_text("what other steps said\n")
    _, summary = nights.run(GITHUB_STEP_SUMMARY=str(shown))
    assert shown.read_text() == "what other steps said\n" + summary


@pytest.mark.skipif("require_gpus" not in options.Options.__annotations__, reason="there is no --require-gpus yet")
def test_gpus_that_are_not_there_fail_the_night(nights: Nights) -> None:
    nights.project.write("test_gpu.py", "import pytest\n@pytest.mark.world(1, gpus=1)\ndef test_gpu(): pass\n")
    assert nights.run()[0] == 0, "without GPUs asked for, it is a skip"
    code, summary = nights.run(gpus=1, CUDA_VISIBLE_DEVICES="")
    assert code == 1
    assert "test_gpu" in summary


@pytest.mark.smoke
def test_without_arguments_it_shows_its_usage(nights: Nights) -> None:
    ended = subprocess.run([_ROOT / "ci/nightly.sh"], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "usage: ci/nightly.sh GPUS HISTORY" in ended.stderr


def test_slurm_spends_the_night_with_the_gpus_that_it_was_given(nights: Nights) -> None:
    """The batch script in a repository of its own, whose `make install` has nothing to do."""
    repository = nights.project.folder
    shutil.copytree(_ROOT / "ci", repository / "ci")
    (repository / "Makefile").write_text("install:\n\t@touch installed\n")
    (repository / "suites").mkdir()
    (repository / "test_inner.py").rename(repository / "suites/test_inner.py")
    environment = nights.environment(SLURM_SUBMIT_DIR=str(repository), SLURM_GPUS_ON_NODE="0")
    ended = subprocess.run(
        ["bash", repository / "ci/nightly.slurm", "nights"], env=environment, cwd="/", capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (repository / "installed").exists()
    (file,) = (repository / "nights/0-gpus").glob("*.jsonl")
    assert read(file).outcomes == {"test_one": "pass", "test_two": "pass"}


# --- make conformance --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "status"),
    [(_GREEN, 0), (_GREEN.replace("test_two(): pass", "test_two(): 1/0"), 1)],
    ids=["green", "red"],
)
def test_conformance_leaves_a_run_file_and_a_page_and_prints_their_paths(
    nights: Nights, source: str, status: int
) -> None:
    nights.project.write("test_inner.py", source)
    ended = subprocess.run(
        [_ROOT / "ci/conformance.sh", "kept", "-p", "no:cacheprovider"], cwd=nights.project.folder,
        env=nights.environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert read(nights.project.folder / "kept/run.jsonl").footer is not None
    assert "<html" in (nights.project.folder / "kept/report.html").read_text()
    assert "run file: kept/run.jsonl" in ended.stdout
    assert "kept/report.html: " in ended.stdout


# --- as those who know their kind read them ------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.parametrize("script", _SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    checked = subprocess.run([_BIN / "shellcheck", script], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert os.access(script, os.X_OK)


@pytest.mark.smoke
@pytest.mark.skipif(not (_ROOT / ".git").exists(), reason="a source distribution has no commits")
def test_what_a_change_must_pass_runs_in_a_copy_with_a_path_as_users_have_them(tmp_path: Path) -> None:
    (tmp_path / "make").write_text(
        '#!/bin/sh\nprintf "%s\\n" "make $*" "$PWD" "$(ls pyproject.toml ci/nightly.sh)"\n'
    )
    for name in ("make", "chromium", "chromedriver"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    ran = subprocess.run([_ROOT / ".ci/run"], env=environment, capture_output=True, text=True, check=True)
    made = dict(re.findall(r"make (\S+)\n(\S+)/naïve user/everyrank\nci/nightly.sh\npyproject.toml\n", ran.stdout))
    made.pop("test-stacks", None)  # it runs in the checkout, which may lie in such a path, too
    assert {"check", "quick", "test"} < made.keys()
    assert not any(Path(folder).exists() for folder in made.values())


@pytest.mark.smoke
def test_actionlint_has_nothing_to_say(tmp_path: Path) -> None:
    beside = _BIN / "actionlint"
    program = str(beside) if beside.exists() else shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint is not here: its package has wheels for Linux on x86-64 only")
    files = sorted((_ROOT / ".github/workflows").glob("*.yml"))
    assert files
    for number, block in enumerate(block for block in blocks("docs/reports.md") if block.kind == "yaml"):
        files.append(tmp_path / f"in-the-docs-{number}.yml")
        files[-1].write_text(block.text)
    checked = subprocess.run(
        [program, "-config-file", ".github/actionlint.yaml", *files], cwd=_ROOT,
        env={**os.environ, "PATH": f"{_BIN}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.smoke
def test_the_workflow_runs_our_scripts_for_one_gpu_and_for_four() -> None:
    text = (_ROOT / ".github/workflows/nightly-gpu.yml").read_text()
    assert 'ci/nightly.sh "$GPUS" "$NIGHTS" suites/' in text
    assert "gpus: 1\n" in text
    assert "gpus: 4\n" in text
