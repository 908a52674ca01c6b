"""A conftest that records which processes of an inner run start processes, and a function that reads the record."""

from __future__ import annotations

from tests.inner import Project

#: A conftest that records each start of a process, in the controller and in its forks.
AUDIT = """
    import os, sys

    _folder = os.path.dirname(__file__)
    _controller = os.getpid()

    def _record(event, arguments):
        if event in ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"):
            with open(os.path.join(_folder, "started"), "a") as file:
                file.write("controller\\n" if os.getpid() == _controller else "zygote\\n")

    sys.addaudithook(_record)
"""


def lines(project: Project, name: str) -> list[str]:
    """Return the lines of a file of the project; none if the file does not exist."""
    path = project.folder / name
    return path.read_text().splitlines() if path.exists() else []
