"""Who starts processes in an inner run: a conftest that notes it, and what it has noted."""

from __future__ import annotations

from tests.inner import Project

#: Notes who starts processes, in the controller and in what is forked from it.
AUDIT = """
    import os, sys

    _here = os.path.dirname(__file__)
    _controller = os.getpid()

    def _hear(event, arguments):
        if event in ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"):
            with open(os.path.join(_here, "started"), "a") as file:
                file.write("controller\\n" if os.getpid() == _controller else "zygote\\n")

    sys.addaudithook(_hear)
"""


def lines(project: Project, name: str) -> list[str]:
    """What a file of the project has in it; nothing, if it was not written."""
    path = project.folder / name
    return path.read_text().splitlines() if path.exists() else []
