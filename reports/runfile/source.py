"""Find the source that a run tested and the CI job that ran it: ask git, and read the variables of CI services."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from everyrank.reports.runfile.model import Header

#: Seconds. A repository on a slow disk is no reason to keep tests waiting.
PATIENCE = 3.0

Environ = Mapping[str, str]


@dataclass(frozen=True)
class Source:
    """The source of a run, as far as it is known. Unknown parts are empty."""

    commit: str = ""
    branch: str = ""
    dirty: bool = False  # tracked files differed from the commit
    ci: str = ""  # the service, by its name
    ci_link: str = ""

    def __str__(self) -> str:
        """``main at 1a2b3c4d5e with changes``."""
        commit = self.commit[:10] + (" with changes" if self.dirty else "")
        return f"{self.branch} at {commit}" if self.branch and commit else self.branch or commit

    @property
    def web_link(self) -> str:
        """The link if it is a safe web link: no character of it ends the markup around it."""
        return self.ci_link if re.fullmatch(r"https?://[^\s<>\"'`()]+", self.ci_link) else ""


def of_header(header: Header) -> Source:
    """Return the source that a run file's header names."""
    return Source(header.commit, header.branch, header.dirty, header.ci, header.ci_link)


def source_of(folder: Path, environ: Environ, patience: float = PATIENCE) -> Source:
    """Ask git for the source of a folder, and read CI's variables. Never fail, take at most 2 * ``patience``."""
    of_git = _of_git(folder, patience)
    service = next((service for service, (variable, _) in _SERVICES.items() if environ.get(variable)), "")
    if not service:
        return of_git
    job = _SERVICES[service][1](environ)
    # A job may test another repository than its own: then only its link is known to be right.
    if of_git.commit and job.commit and of_git.commit != job.commit:
        return replace(of_git, ci=service, ci_link=job.ci_link)
    return Source(of_git.commit or job.commit, of_git.branch or job.branch, of_git.dirty, service, job.ci_link)


# --- git -------------------------------------------------------------------------------------------------


def _of_git(folder: Path, patience: float) -> Source:
    # --abbrev-ref: a branch that is checked out has its name, any other commit is "HEAD".
    named = _git(folder, patience, "rev-parse", "HEAD", "--abbrev-ref", "HEAD").split("\n")
    if len(named) != 2:
        return Source()
    commit, branch = named
    changes = _git(folder, patience, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
    return Source(commit, "" if branch == "HEAD" else branch, bool(changes))


def _git(folder: Path, patience: float, *arguments: str) -> str:
    """Return git's answer; an empty text without git, without a repository, or without an answer in time."""
    # Take no locks: a person may be committing. Start no file monitor: it would outlive the run.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        asked = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=patience,
            check=True,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout.strip()


# --- CI services -----------------------------------------------------------------------------------------


def _github(environ: Environ) -> Source:
    server, repository, run = (environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    attempt = environ.get("GITHUB_RUN_ATTEMPT", "1")
    link = f"{server}/{repository}/actions/runs/{run}" if server and repository and run else ""
    link += f"/attempts/{attempt}" if link and attempt != "1" else ""
    # Of a pull request GITHUB_REF_NAME is "12/merge".
    branch = environ.get("GITHUB_HEAD_REF") or environ.get("GITHUB_REF_NAME", "")
    return Source(environ.get("GITHUB_SHA", ""), branch, ci_link=link)


def _gitlab(environ: Environ) -> Source:
    branch = environ.get("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME") or environ.get("CI_COMMIT_REF_NAME", "")
    link = environ.get("CI_JOB_URL") or environ.get("CI_PIPELINE_URL", "")
    return Source(environ.get("CI_COMMIT_SHA", ""), branch, ci_link=link)


def _jenkins(environ: Environ) -> Source:
    branch = environ.get("CHANGE_BRANCH") or environ.get("BRANCH_NAME") or environ.get("GIT_BRANCH", "")
    return Source(environ.get("GIT_COMMIT", ""), branch.removeprefix("origin/"), ci_link=environ.get("BUILD_URL", ""))


def _buildkite(environ: Environ) -> Source:
    commit, build, job = (environ.get(f"BUILDKITE_{name}", "") for name in ("COMMIT", "BUILD_URL", "JOB_ID"))
    link = f"{build}#{job}" if build and job else build
    # A build that was started by hand is of "HEAD".
    return Source("" if commit == "HEAD" else commit, environ.get("BUILDKITE_BRANCH", ""), ci_link=link)


def _circleci(environ: Environ) -> Source:
    commit, branch, link = (environ.get(f"CIRCLE_{name}", "") for name in ("SHA1", "BRANCH", "BUILD_URL"))
    return Source(commit, branch, ci_link=link)


def _azure(environ: Environ) -> Source:
    collection = environ.get("SYSTEM_COLLECTIONURI") or environ.get("SYSTEM_TEAMFOUNDATIONCOLLECTIONURI", "")
    project, build = environ.get("SYSTEM_TEAMPROJECT", ""), environ.get("BUILD_BUILDID", "")
    link = f"{collection.rstrip('/')}/{project}/_build/results?buildId={build}" if collection and build else ""
    branch = environ.get("SYSTEM_PULLREQUEST_SOURCEBRANCH") or environ.get("BUILD_SOURCEBRANCH", "")
    return Source(
        environ.get("BUILD_SOURCEVERSION", ""), branch.removeprefix("refs/heads/"), ci_link=link.replace(" ", "%20")
    )


#: By the variable that a service sets in each of its jobs.
_SERVICES: dict[str, tuple[str, Callable[[Environ], Source]]] = {
    "GitHub Actions": ("GITHUB_ACTIONS", _github),
    "GitLab": ("GITLAB_CI", _gitlab),
    "Jenkins": ("JENKINS_URL", _jenkins),
    "Buildkite": ("BUILDKITE", _buildkite),
    "CircleCI": ("CIRCLECI", _circleci),
    "Azure Pipelines": ("TF_BUILD", _azure),
}
