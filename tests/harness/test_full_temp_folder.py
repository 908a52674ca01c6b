"""With a temp folder that is full, each test that needs room reports that, and no other test fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inner import Inner, Project

SOURCE = """
    import os, tempfile
    import pytest
    import torch.distributed as dist

    BIG = os.path.join(tempfile.gettempdir(), "big")

    def fill():
        with open(BIG, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    @pytest.mark.world(2)
    def test_while_there_is_room(process_group):
        dist.barrier()

    @pytest.mark.world(2)
    def test_fills_it(process_group, world):
        if world.rank == 0:
            fill()
        dist.barrier()

    @pytest.mark.world(2)
    def test_needs_none(process_group):
        dist.barrier()

    @pytest.mark.world(2)
    def test_prints(process_group):
        print("more than fits " * 10_000)

    @pytest.mark.world(2, fresh=True)
    def test_opens_a_group(process_group):
        dist.barrier()

    @pytest.mark.world(2, fresh=True)
    def test_starts_an_agent(rpc_agent):
        pass

    def test_makes_room():
        os.remove(BIG)

    @pytest.mark.world(2, fresh=True)
    def test_has_room(process_group):
        dist.barrier()
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Mount a file system of 512 KiB."""
    folder = tmp_path_factory.mktemp("small")
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", folder]).returncode:
        pytest.skip("only somebody who may mount a file system can fill one")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="module")
def inner(module_project: Project, small: Path) -> Inner:
    module_project.temp = small
    module_project.write("test_inner.py", SOURCE)
    return module_project.run()


@pytest.mark.parametrize(
    "test",
    ["test_while_there_is_room", "test_fills_it", "test_needs_none", "test_makes_room", "test_has_room"],
)
def test_a_test_that_needs_no_room_passes(inner: Inner, test: str) -> None:
    assert inner[test].outcome == "passed", inner[test].text


@pytest.mark.parametrize(
    ("test", "outcome"),
    [("test_prints", "failed"), ("test_opens_a_group", "error"), ("test_starts_an_agent", "error")],
)
def test_a_test_that_needs_room_reports_that_there_is_none(inner: Inner, test: str, outcome: str) -> None:
    assert inner[test].outcome == outcome
    assert "No space left on device" in inner[test].text
