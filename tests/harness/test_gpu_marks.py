"""The keywords of the mark world for GPUs: the needs that they state, and the ones that make no sense."""

from __future__ import annotations

import textwrap
from typing import Any

import expecttest
import pytest
from everyrank.declare import requirements
from everyrank.declare.declaration import Declaration, from_mark
from everyrank.errors import MisuseError
from everyrank.resources.gpus.needs import Needs


def declared(*args: Any, **kwargs: Any) -> Declaration:
    return from_mark(pytest.mark.world(*args, **kwargs).mark)


#: what a mark on a world of 3 says -> what that world needs.
NEEDS: list[tuple[dict[str, Any], Needs]] = [
    ({}, Needs()),
    ({"gpus": 0}, Needs()),
    ({"gpus": 2}, Needs(2, 2)),
    ({"gpus": 0.5}, Needs(1, 1, share=0.5)),
    ({"device": "cuda"}, Needs(1, 3)),
    ({"device": "cuda", "gpus": 2}, Needs(2, 2)),
    ({"gpu_memory": "20GB"}, Needs(1, 3, memory=20 * 10**9)),
    ({"capability": [8, 0]}, Needs(1, 3, capability=(8, 0))),
    ({"p2p": True}, Needs(3, 3, p2p=True)),
    ({"p2p": True, "gpus": 2}, Needs(2, 2, p2p=True)),
    ({"backend": "nccl"}, Needs(3, 3, one_per_rank=True)),
    ({"backend": "cpu:gloo,cuda:nccl", "gpus": 3}, Needs(3, 3, one_per_rank=True)),
    ({"backend": "gloo"}, Needs()),
]


@pytest.mark.parametrize(
    ("arguments", "needs"), NEEDS, ids=[" ".join(map(str, arguments.items())) for arguments, _ in NEEDS]
)
def test_what_a_mark_needs(arguments: dict[str, Any], needs: Needs) -> None:
    requirements.check(declared(**arguments), 3)
    assert requirements.needs(declared(**arguments), 3) == needs


def test_a_class_in_torchs_style_takes_the_gpus_that_exist() -> None:
    assert requirements.needs(Declaration(sizes=(4,), gpus_if_any=True), 4) == Needs(0, 4)


class TestMisuse(expecttest.TestCase):
    """Each message states the mistake, and what to write instead."""

    def refused(self, size: int = 2, **arguments: Any) -> str:
        with pytest.raises(MisuseError) as error:
            requirements.check(declared(**arguments), size)
        return textwrap.fill(str(error.value), 100)

    def test_a_number_above_1_that_is_not_whole(self) -> None:
        self.assertExpectedInline(
            self.refused(gpus=1.5),
            """\
the mark world: gpus must be the number of GPUs that the world needs, 0 or more, or its share of one
GPU, such as 0.5, not 1.5""",
        )

    def test_memory_without_a_unit(self) -> None:
        self.assertExpectedInline(
            self.refused(gpu_memory="20"),
            """the mark world: gpu_memory must be a text such as '20GB', or bytes, not '20'""",
        )

    def test_capability_as_a_number(self) -> None:
        self.assertExpectedInline(
            self.refused(capability=8.0),
            """the mark world: capability must be a pair such as (8, 0), not 8.0""",
        )

    def test_p2p_that_is_neither_true_nor_false(self) -> None:
        self.assertExpectedInline(
            self.refused(p2p="yes"),
            """the mark world: p2p must be True or False, not 'yes'""",
        )

    def test_a_peer_of_nobody(self) -> None:
        self.assertExpectedInline(
            self.refused(p2p=True, gpus=0.5),
            """the mark world: p2p=True is about two GPUs or more, and gpus=0.5 asks for fewer""",
        )

    def test_the_memory_of_no_gpu(self) -> None:
        self.assertExpectedInline(
            self.refused(gpus=0, gpu_memory="1GB"),
            """the mark world: gpu_memory='1GB' asks for GPUs and gpus=0 for none: drop one of them""",
        )

    def test_cuda_on_no_gpu(self) -> None:
        self.assertExpectedInline(
            self.refused(gpus=0, device="cuda"),
            """the mark world: device='cuda' asks for GPUs and gpus=0 for none: drop one of them""",
        )

    def test_the_capability_of_a_processor(self) -> None:
        self.assertExpectedInline(
            self.refused(device="cpu", capability=(8, 0)),
            """the mark world: capability=(8, 0) asks for GPUs and device='cpu' for none: drop one of them""",
        )

    def test_nccl_with_fewer_gpus_than_ranks(self) -> None:
        self.assertExpectedInline(
            self.refused(size=4, backend="nccl", gpus=2),
            """\
backend='nccl' needs a GPU for each of the 4 ranks, and gpus=2 has fewer: write gpus=4, or
backend='gloo', which takes CUDA tensors too""",
        )
