"""A world that is only slow is left alone, whatever ranks wait for: the tests of `samples/slow/`."""

from __future__ import annotations

from pathlib import Path

from tests.inner import Project

SAMPLES = Path(__file__).parents[1] / "samples" / "slow"
KINDS = ("late", "groups", "messages", "threads", "processes")


def test_a_world_that_is_only_slow_is_left_alone(project: Project) -> None:
    """One run, in which the workers sleep at the same time."""
    for kind in KINDS:
        project.write(f"test_{kind}.py", (SAMPLES / f"{kind}.py").read_text())
    project.write("slow.py", (SAMPLES / "slow.py").read_text())
    inner = project.run("--leaks=off", "-n", "4")
    assert {nodeid: test.text for nodeid, test in inner.tests.items() if test.outcome != "passed"} == {}
    assert {nodeid.split("::")[0] for nodeid in inner.tests} == {f"test_{kind}.py" for kind in KINDS}
    assert len(inner.tests) == 60, inner.out
