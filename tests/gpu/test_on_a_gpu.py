"""On a machine with a GPU: one is enough. Elsewhere each test is skipped with its reason."""

from __future__ import annotations

import pytest
from everyrank.declare import requirements
from everyrank.devices import cuda
from everyrank.devices.cuda import CUDA
from everyrank.resources.gpus.needs import Needs

from tests.inner import Project

REASON = requirements.missing_gpus(Needs(1, 1), CUDA.found())

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

FORKED = """
    import os

    def is_forked():
        with open(f"/proc/{os.getpid()}/cmdline", "rb") as file:
            return b"everyrank.rank.spawned" not in file.read()
"""


def test_a_lone_world_reduces_by_nccl(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import pytest, torch
        import torch.distributed as dist

        @pytest.mark.world(1, gpus=1)
        def test_nccl(process_group, device):
            assert dist.get_backend() == "nccl"
            tensor = torch.arange(3.0, device=device)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [0, 1, 2]

        @pytest.mark.world(1, gpus=1)
        def test_nccl_again(process_group, device):
            dist.all_reduce(torch.ones(1, device=device))
        """,
    )
    inner = project.run()
    assert inner.outcomes() == {"test_nccl": "passed", "test_nccl_again": "passed"}, inner.out
    assert inner.warnings == []


def test_two_ranks_share_a_gpu_over_gloo(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import pytest, torch
        import torch.distributed as dist

        @pytest.mark.world(2, gpus=1)
        def test_gloo(process_group, device, world):
            assert (dist.get_backend(), str(device)) == ("gloo", "cuda:0")
            assert torch.cuda.device_count() == 1
            tensor = torch.full((4,), 1.0 + world.rank, device=device)
            dist.all_reduce(tensor)
            assert tensor.is_cuda and tensor.eq(3).all()

        @pytest.mark.world(2, gpus=0.5)
        def test_half(process_group, device):
            assert dist.get_backend() == "gloo"
            dist.all_reduce(torch.ones(1, device=device))
        """,
    )
    inner = project.run()
    assert inner.outcomes() == {"test_gloo": "passed", "test_half": "passed"}, inner.out


def test_asking_for_gpus_in_a_skipif_leaves_the_fork_usable(project: Project) -> None:
    project.write(
        "test_inner.py",
        FORKED
        + """
    import pytest, torch

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
    @pytest.mark.skipif(torch.cuda.device_count() < 1, reason="no GPU")
    @pytest.mark.world(1, gpus=1)
    def test_on_gpu(device):
        assert is_forked()
        assert (torch.ones(2, device=device) * 3).sum().item() == 6
    """,
    )
    inner = project.run()
    assert inner["test_on_gpu"].outcome == "passed", inner.out
    assert inner.warnings == []


def test_worlds_are_spawned_where_collection_has_initialised_cuda(project: Project) -> None:
    project.write(
        "test_inner.py",
        FORKED
        + """
    import pytest, torch

    AT_IMPORT = torch.ones(2, device="cuda")

    @pytest.mark.world(1, gpus=1)
    def test_on_gpu(device):
        assert not is_forked()
        assert (AT_IMPORT.to(device) * 3).sum().item() == 6
    """,
    )
    inner = project.run()
    assert inner["test_on_gpu"].outcome == "passed", inner.out
    assert any("CUDA was initialised during collection" in warning["text"] for warning in inner.warnings)


def test_gpu_memory_that_is_kept_is_a_leak(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import pytest, torch
        kept = []

        @pytest.mark.world(1, gpus=1)
        def test_keeps(device):
            kept.append(torch.ones(1024, device=device))

        @pytest.mark.world(1, gpus=1)
        def test_frees(device):
            torch.ones(1024, device=device)
        """,
    )
    inner = project.run()
    assert "rank 0 left GPU memory: 4096 bytes on cuda:0" in inner["test_keeps"].sections["left behind"]
    assert "left behind" not in inner["test_frees"].sections


def test_a_world_that_declares_no_gpu_sees_none(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import torch

        def test_cpu(world):
            assert not torch.cuda.is_available()
        """,
    )
    assert project.run()["test_cpu"].outcome == "passed"


def test_the_driver_and_torch_agree(project: Project) -> None:
    """What is found without CUDA is what CUDA finds."""
    ours, torchs = CUDA.found(), cuda._ask_torch(None)
    assert {(gpu.uuid, gpu.name, gpu.capability) for gpu in ours} == {
        (gpu.uuid, gpu.name, gpu.capability) for gpu in torchs
    }
