"""Which GPUs a process may use: the variable as CUDA reads it, the driver's library, torch's own answer."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from everyrank.devices import cuda, nvml
from everyrank.devices.cuda import CUDA, made_up, visible
from everyrank.devices.protocol import Gpu, bytes_of
from everyrank.errors import MisuseError

FOUR = made_up("4")
MIXED = made_up(
    json.dumps(
        [
            {"uuid": "GPU-aa11"},
            {"uuid": "GPU-aa22", "instances": [{"uuid": "MIG-1"}, {"uuid": "MIG-2"}]},
            {"uuid": "GPU-bb33", "instances": []},
            {"uuid": "GPU-cc44"},
        ]
    )
)


@pytest.fixture(autouse=True)
def found_anew() -> Iterator[None]:
    cuda._found.cache_clear()
    yield
    cuda._found.cache_clear()


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        (None, ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]),
        ("", []),
        ("-1", []),
        ("2", ["GPU-2"]),
        ("3,1", ["GPU-3", "GPU-1"]),
        ("1, 2", ["GPU-1", "GPU-2"]),
        ("0,4,1", ["GPU-0"]),
        ("0,-1,1", ["GPU-0"]),
        ("1,1", []),
        ("GPU-3,GPU-0", ["GPU-3", "GPU-0"]),
        ("GPU-3,1", ["GPU-3", "GPU-1"]),
        ("GPU-7,GPU-0", []),
        ("nonsense", []),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(asked: str | None, seen: list[str]) -> None:
    assert [gpu.uuid for gpu in visible(FOUR, asked)] == seen


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        (None, ["GPU-aa11", "MIG-1", "MIG-2", "GPU-cc44"]),
        ("MIG-2", ["MIG-2"]),
        ("MIG-2,MIG-1", ["MIG-2", "MIG-1"]),
        ("GPU-aa11,MIG-1", ["GPU-aa11", "MIG-1"]),
        ("1", ["MIG-1"]),  # CUDA takes the first instance of a GPU in MIG mode
        ("GPU-aa22", ["MIG-1"]),
        ("2,3", []),  # in MIG mode, and not one instance
        ("GPU-b,GPU-c", []),  # GPU-b is the one in MIG mode without an instance
        ("GPU-c", ["GPU-cc44"]),  # cut short, and still one GPU's
        ("GPU-aa", []),  # two GPUs'
    ],
)
def test_instances_and_short_uuids(asked: str | None, seen: list[str]) -> None:
    assert [gpu.uuid for gpu in visible(MIXED, asked)] == seen


def test_a_made_up_list_stands_for_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERYRANK_DEVICES", '[{"uuid": "GPU-a", "memory": "80GB", "capability": [9, 0]}]')
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert CUDA.found() == (Gpu("GPU-a", memory=80 * 10**9, capability=(9, 0)),)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert CUDA.found() == ()


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"uuid": 1}', '[{"memory": "1GB"}]', '[{"uuid": "a", "memory": "much"}]']
)
def test_a_made_up_list_that_is_not_a_list_is_refused(text: str) -> None:
    with pytest.raises(MisuseError, match="EVERYRANK_DEVICES is not a list of GPUs"):
        made_up(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [(0, 0), (12, 12), ("20GB", 20 * 10**9), ("1.5 GiB", 3 * 2**29), ("512MB", 512 * 10**6), ("7B", 7)],
)
def test_an_amount_of_memory(text: object, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["20", "GB", "-1GB", "infGB", "nanGB", 1.5, True, -1, None])
def test_an_invalid_amount_of_memory_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"not an amount of memory|could not convert"):
        bytes_of(text)


# --- the driver's library --------------------------------------------------------------------------


@dataclass
class Card:
    uuid: str
    name: str = "H100"
    memory: int = 85 * 10**9
    capability: tuple[int, int] = (9, 0)
    peers: tuple[str, ...] = ()
    instances: tuple[Card, ...] = ()
    knows_mig: bool = True


@dataclass
class Library:
    """A fake of the driver's library, with made-up cards. A handle is the number of a uuid."""

    cards: list[Card]
    code: int = 0
    ended: int = 0
    _handles: dict[int, Card] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for card in self.cards:
            for device in (card, *card.instances):
                self._handles[len(self._handles) + 1] = device

    def _number(self, card: Card) -> int:
        return next(number for number, device in self._handles.items() if device is card)

    def nvmlInit_v2(self) -> int:
        return self.code

    def nvmlShutdown(self) -> int:
        self.ended += 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.cards)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = self._number(self.cards[number.value])
        return 0

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, buffer: Any, length: ctypes.c_uint) -> int:
        buffer.value = self._card(handle).uuid.encode()
        return 0

    def nvmlDeviceGetName(self, handle: ctypes.c_void_p, buffer: Any, length: ctypes.c_uint) -> int:
        buffer.value = self._card(handle).name.encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total = self._card(handle).memory
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: ctypes.c_void_p, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self._card(handle).capability
        return 0

    def nvmlDeviceGetMigMode(self, handle: ctypes.c_void_p, current: Any, pending: Any) -> int:
        card = self._card(handle)
        current._obj.value = 1 if card.instances else 0
        return 0 if card.knows_mig else 3

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: ctypes.c_void_p, count: Any) -> int:
        count._obj.value = 7
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, parent: ctypes.c_void_p, number: Any, handle: Any) -> int:
        instances = self._card(parent).instances
        if number.value >= len(instances):
            return 6  # not found
        handle._obj.value = self._number(instances[number.value])
        return 0

    def nvmlDeviceGetP2PStatus(self, device: ctypes.c_void_p, other: ctypes.c_void_p, kind: Any, status: Any) -> int:
        status._obj.value = 0 if self._card(other).uuid in self._card(device).peers else 5
        return 0

    def _card(self, handle: ctypes.c_void_p) -> Card:
        assert handle.value is not None
        return self._handles[handle.value]


def test_the_drivers_library_reports_all_that_a_test_may_need() -> None:
    library = Library(
        [
            Card("GPU-a", peers=("GPU-b",)),
            Card("GPU-b", peers=("GPU-a",), memory=24 * 10**9, name="L4", capability=(8, 9), knows_mig=False),
            Card("GPU-c", instances=(Card("MIG-x", memory=10**10), Card("MIG-y", memory=10**10))),
        ]
    )
    assert nvml.read(library) == (
        Gpu("GPU-a", "H100", 85 * 10**9, (9, 0), frozenset({"GPU-b"})),
        Gpu("GPU-b", "L4", 24 * 10**9, (8, 9), frozenset({"GPU-a"})),
        Gpu(
            "GPU-c",
            "H100",
            85 * 10**9,
            (9, 0),
            instances=(Gpu("MIG-x", "H100", 10**10, (9, 0)), Gpu("MIG-y", "H100", 10**10, (9, 0))),
            mig_mode=True,
        ),
    )
    assert library.ended == 1


def test_a_library_without_a_driver_knows_nothing() -> None:
    assert nvml.read(Library([Card("GPU-a")], code=9)) is None


def test_indices_are_ambiguous_if_models_differ() -> None:
    """CUDA numbers the fastest GPU first, the driver goes by the bus."""
    machine = (Gpu("GPU-a", "L4"), Gpu("GPU-b", "H100"))
    assert cuda._numbers_are_ambiguous(machine, "0", "")
    assert not cuda._numbers_are_ambiguous(machine, "0", "PCI_BUS_ID")
    assert not cuda._numbers_are_ambiguous(machine, "GPU-b", "")
    assert not cuda._numbers_are_ambiguous(machine, None, "")
    assert not cuda._numbers_are_ambiguous(machine[:1], "0", "")


def test_torchs_answer_keeps_the_callers_names_for_the_gpus() -> None:
    answer = [
        {"uuid": "one", "name": "X", "memory": 5, "capability": [8, 0], "peers": [1]},
        {"uuid": "", "name": "X", "memory": 5, "capability": [8, 0], "peers": []},
    ]
    first, second = cuda.from_torch(answer, ["3", "1"])
    assert (first.uuid, first.visible_as, first.peers) == ("GPU-one", "3", {"GPU-1"})
    assert (second.uuid, second.visible_as) == ("GPU-1", "1")


def test_torch_is_asked_in_a_separate_interpreter() -> None:
    """On a machine without a GPU the answer is: none."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    assert cuda._ask_torch(None) == ()
