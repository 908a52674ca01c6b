"""Which source a run tested: as git knows it, as CI services state it, and how readers name it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from everyrank import cli
from everyrank.model.outcome import Ending
from everyrank.reports.runfile.source import Source, source_of

from tests.chromium import Browser
from tests.inner import Project
from tests.made_up_runs import case, header, run_of
from tests.pages import write
from tests.run_files import read

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run([*GIT, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One commit on main."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "kept.py").write_text("kept = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_git_knows_the_commit_and_the_branch_also_below_the_root(repository: Path) -> None:
    below = repository / "deep"
    below.mkdir()
    (below / "untracked.jsonl").write_text("a run file, say")
    assert source_of(below, {}) == Source(git(repository, "rev-parse", "HEAD"), "main")


def test_changes_that_are_not_committed_are_marked(repository: Path) -> None:
    (repository / "kept.py").write_text("kept = 2\n")
    assert source_of(repository, {}).dirty


def test_a_commit_without_a_branch_has_the_one_that_ci_names(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "-q", "--detach")
    assert source_of(repository, {}) == Source(commit)
    environ = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_SHA": commit,
        "GITHUB_REF_NAME": "12/merge",
        "GITHUB_HEAD_REF": "fix",
    }
    assert source_of(repository, environ) == Source(commit, "fix", ci="GitHub Actions")


def test_of_a_job_of_another_repository_only_the_link_is_taken(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    environ = {
        "CIRCLECI": "true", "CIRCLE_SHA1": "0" * 40, "CIRCLE_BRANCH": "theirs", "CIRCLE_BUILD_URL": "https://ci/1"
    }  # fmt: skip
    commit = git(repository, "rev-parse", "HEAD")
    assert source_of(repository, environ) == Source(commit, ci="CircleCI", ci_link="https://ci/1")


def test_without_git_a_repository_or_a_commit_nothing_is_known(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert source_of(tmp_path, {}) == Source()
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert source_of(empty, {}) == Source()
    assert source_of(tmp_path / "gone", {}) == Source()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source_of(repository, {}) == Source()


def test_a_git_that_never_answers_is_not_waited_for(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    assert source_of(repository, {"GITLAB_CI": "true", "CI_COMMIT_SHA": "abc"}, patience=0.1) == Source(
        "abc", ci="GitLab"
    )


@pytest.mark.parametrize(
    ("environ", "source"),
    [
        (
            {
                "GITHUB_ACTIONS": "true", "GITHUB_SHA": "abc", "GITHUB_REF_NAME": "main",
                "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "me/mine", "GITHUB_RUN_ID": "7",
                "GITHUB_RUN_ATTEMPT": "2",
            },
            Source("abc", "main", False, "GitHub Actions", "https://github.com/me/mine/actions/runs/7/attempts/2"),
        ),
        (
            {
                "GITLAB_CI": "true", "CI_COMMIT_SHA": "abc", "CI_COMMIT_REF_NAME": "main",
                "CI_PIPELINE_URL": "https://gitlab.example.org/p/1", "CI_JOB_URL": "https://gitlab.example.org/j/2",
            },
            Source("abc", "main", False, "GitLab", "https://gitlab.example.org/j/2"),
        ),
        (
            {
                "JENKINS_URL": "http://jenkins:8080/", "GIT_COMMIT": "abc", "GIT_BRANCH": "origin/main",
                "BUILD_URL": "http://jenkins:8080/job/mine/3/",
            },
            Source("abc", "main", False, "Jenkins", "http://jenkins:8080/job/mine/3/"),
        ),
        (
            {
                "BUILDKITE": "true", "BUILDKITE_COMMIT": "HEAD", "BUILDKITE_BRANCH": "main",
                "BUILDKITE_BUILD_URL": "https://buildkite.com/me/mine/builds/4", "BUILDKITE_JOB_ID": "j",
            },
            Source("", "main", False, "Buildkite", "https://buildkite.com/me/mine/builds/4#j"),
        ),
        (
            {
                "CIRCLECI": "true", "CIRCLE_SHA1": "abc", "CIRCLE_BRANCH": "main",
                "CIRCLE_BUILD_URL": "https://circleci.com/gh/me/mine/5",
            },
            Source("abc", "main", False, "CircleCI", "https://circleci.com/gh/me/mine/5"),
        ),
        (
            {
                "TF_BUILD": "True", "BUILD_SOURCEVERSION": "abc", "BUILD_SOURCEBRANCH": "refs/heads/main",
                "SYSTEM_COLLECTIONURI": "https://dev.azure.com/me/", "SYSTEM_TEAMPROJECT": "My Project",
                "BUILD_BUILDID": "6",
            },
            Source(
                "abc", "main", False, "Azure Pipelines",
                "https://dev.azure.com/me/My%20Project/_build/results?buildId=6",
            ),
        ),
        ({"CI": "true"}, Source()),
        ({"GITHUB_ACTIONS": "true"}, Source(ci="GitHub Actions")),
    ],
)  # fmt: skip
def test_ci_services_name_the_commit_the_branch_and_the_link_of_the_run(
    environ: dict[str, str], source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert source_of(tmp_path, environ) == source


def test_the_run_file_states_what_was_tested(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GIT_", "GITHUB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    project.write("test_inner.py", "import pytest\n\n@pytest.mark.world(2)\ndef test_two(): pass\n")
    git(project.folder, "init", "-q")
    git(project.folder, "add", "test_inner.py")
    git(project.folder, "commit", "-qm", "first")
    project.write("test_inner.py", "import pytest\n\n@pytest.mark.world(2)\ndef test_two(): assert True\n")
    project.run("--run-file=out.jsonl")
    header = read(project.folder / "out.jsonl").header
    fields = [header.get(name) for name in ("commit", "branch", "dirty", "ci", "ci_link")]
    assert fields == [git(project.folder, "rev-parse", "HEAD"), "main", True, "GitHub Actions", None]


# --- who names it ----------------------------------------------------------------------------------------------


COMMITS = ("1" * 40, "2" * 40, "3" * 40)


def _night(folder: Path, number: int, outcome: Ending, **changes: Any) -> Path:
    facts: dict[str, Any] = {"commit": COMMITS[number], "branch": "main", **changes}
    run = run_of(header(started=1_780_000_000.0 + 86_400 * number, **facts), [case(outcome=outcome)])
    return run.write(folder / f"night-{number}.jsonl")


def test_a_diff_names_both_commits_and_links_the_ci_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = _night(tmp_path, 0, "pass", ci="GitHub Actions", ci_link="https://ci.example.org/runs/7")
    new = _night(tmp_path, 1, "fail", dirty=True, ci_link="javascript:alert(1)")
    assert cli.main(["diff", str(old), str(new)]) == 1
    text = capsys.readouterr().out
    assert "torch 2.13.0+cpu, main at 1111111111, https://ci.example.org/runs/7):" in text
    assert "torch 2.13.0+cpu, main at 2222222222 with changes):" in text
    assert "javascript" not in text
    cli.main(["diff", str(old), str(new), "--format", "markdown"])
    assert "`main at 1111111111`, [CI run](https://ci.example.org/runs/7)):" in capsys.readouterr().out
    cli.main(["diff", str(old), str(new), "--format", "json"])
    assert json.loads(capsys.readouterr().out)["new"]["source"]["commit"] == COMMITS[1]


def test_a_history_names_the_commit_that_is_red_and_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, outcome in enumerate(("pass", "pass", "fail")):
        _night(tmp_path, number, outcome)  # type: ignore[arg-type]
    assert cli.main(["history", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "(night-2.jsonl, main at 3333333333, 2222222222 the night before)" in printed
    cli.main(["history", str(tmp_path), "--format", "json"])
    night = json.loads(capsys.readouterr().out)["nights"][2]
    assert (night["source"]["commit"], night["source"]["branch"]) == (COMMITS[2], "main")


def test_the_page_names_the_commit_and_links_the_ci_run_only_if_it_is_a_web_address(
    browser: Browser, tmp_path: Path
) -> None:
    run = run_of(
        header(commit=COMMITS[0], branch="main", dirty=True, ci="Jenkins", ci_link="http://jenkins:8080/job/3/"),
        [case()],
    )
    browser.open(write(run, tmp_path))
    assert "commit main at 1111111111 with changes" in browser.text("#facts").replace("\n", " ")
    link = browser.find("#facts a")
    assert (link.text, link.get_attribute("href")) == ("Jenkins", "http://jenkins:8080/job/3/")
    browser.open(write(run_of(header(ci="<b>", ci_link="javascript:alert(1)"), [case()]), tmp_path))
    assert browser.all("#facts a, #facts b") == []
    assert "<b>" in browser.text("#facts")
