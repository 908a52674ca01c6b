"""Tests that are skipped before they get ranks: by their marks, for lack of something, by a condition."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit import AUDIT, lines
from tests.forked import ForkServers
from tests.inner import Inner, Project


class TestSkips:
    """A test that its marks skip never starts a world."""

    @pytest.fixture(scope="module")
    @staticmethod
    def ran(tmp_path_factory: pytest.TempPathFactory, fork_servers: ForkServers) -> tuple[Project, Inner]:
        project = Project(tmp_path_factory.mktemp("skips"), fork_servers)
        project.write("conftest.py", AUDIT)
        project.write(
            "test_skipped.py",
            """
            import pytest

            @pytest.mark.skip(reason="not now")
            @pytest.mark.world(2)
            def test_skip(world): ...

            @pytest.mark.skip("as an argument")
            @pytest.mark.world(2)
            def test_skip_positional(world): ...

            @pytest.mark.skip
            @pytest.mark.world(2)
            def test_skip_bare(world): ...

            @pytest.mark.skipif(True, reason="it is so")
            @pytest.mark.world(2)
            def test_skipif(world): ...

            @pytest.mark.skip(reason="whole class")
            @pytest.mark.world(2)
            class TestClass:
                def test_method(self, world): ...
            """,
        )
        return project, project.run("-rs")

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("test_skip", "not now"),
            ("test_skip_positional", "as an argument"),
            ("test_skip_bare", "unconditional skip"),
            ("test_skipif", "it is so"),
            ("TestClass::test_method", "whole class"),
        ],
    )
    def test_the_reason_is_reported(self, ran: tuple[Project, Inner], name: str, reason: str) -> None:
        assert ran[1][name].outcome == "skipped"
        assert f"Skipped: {reason}" in ran[1][name].text

    def test_no_rank_was_started(self, ran: tuple[Project, Inner]) -> None:
        assert "zygote" not in lines(ran[0], "started")


class TestNeeds:
    """A test that needs what the machine lacks is skipped with the reason; ranks evaluate conditions."""

    @pytest.fixture(scope="module")
    @staticmethod
    def inner(tmp_path_factory: pytest.TempPathFactory, fork_servers: ForkServers) -> Inner:
        project = Project(tmp_path_factory.mktemp("needs"), fork_servers)
        project.write(
            "test_needs.py",
            """
            import pytest

            @pytest.mark.world(4, gpus=4)
            def test_gpus(process_group): ...

            @pytest.mark.world(2, device="cuda")
            def test_cuda(world): ...

            @pytest.mark.world(2, backend="mpi")
            def test_backend(process_group): ...

            @pytest.mark.skipif("sys.platform != 'plan9'")
            @pytest.mark.world(2)
            def test_condition_in_a_string(world): ...

            @pytest.mark.skipif(False, reason="never")
            @pytest.mark.skipif("sys.platform == 'plan9'", reason="never")
            @pytest.mark.world(2)
            def test_runs(world): ...

            @pytest.mark.skipif(False, reason="never")
            @pytest.mark.world(2)
            def test_runs_too(world): ...
            """,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
            return project.run()

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("test_gpus", "needs 4 GPUs, found 0"),
            ("test_cuda", "needs 1 GPU, found 0"),
            ("test_backend", "needs the backend mpi, which this torch does not have"),
            ("test_condition_in_a_string", "condition: sys.platform != 'plan9'"),
        ],
    )
    def test_the_reason_is_reported(self, inner: Inner, name: str, reason: str) -> None:
        assert inner[name].outcome == "skipped", inner[name].text
        assert reason in inner[name].text

    def test_a_false_condition_skips_nothing(self, inner: Inner) -> None:
        assert inner["test_runs"].outcome == inner["test_runs_too"].outcome == "passed"


def test_a_skip_points_at_the_test(project: Project) -> None:
    path = project.write(
        "test_one.py", "import pytest\n\n@pytest.mark.world(4, gpus=4096)\ndef test_gpus(world): ...\n"
    )
    inner = project.run("-rs")
    assert f"{Path(path).name}:3: needs 4096 GPUs, found" in inner.out
