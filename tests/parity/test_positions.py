"""Which elements a rank holds, and which part of an output it has, is read off values."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from everyrank.parity.run.store import Store, Writer
from everyrank.parity.values import dye
from everyrank.parity.values.dye import Holdings
from everyrank.parity.values.parts import locate, whole
from torch import nn


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 4, bias=False)
        self.tied = self.second


def holdings(change: Callable[[Plain], nn.Module]) -> Holdings:
    """Return what a rank holds that changes a dyed model so."""
    plain = Plain().double()
    sizes = {name: each.shape for name, each in plain.named_parameters()}
    starts = dye.offsets(sizes)
    dye.dye(plain)
    return dye.read([change(plain)], sizes, starts, None)


def held(found: Holdings) -> dict[str, list[int]]:
    return {share.name: share.plain.ids().tolist() for share in found.shares}


def _with(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Plain], nn.Module]:
    def made(plain: Plain) -> nn.Module:
        module, _, parameter = name.rpartition(".")
        setattr(
            plain.get_submodule(module), parameter, nn.Parameter(change(plain.get_parameter(name).detach()).clone())
        )
        return plain

    return made


WHOLE = {"first.weight": list(range(24)), "first.bias": list(range(6)), "second.weight": list(range(24))}


def test_a_whole_model_is_held_whole_and_a_tied_weight_once() -> None:
    assert held(holdings(lambda plain: plain)) == WHOLE


@pytest.mark.parametrize(
    ("cut", "ids"),
    [
        (lambda value: value[3:], list(range(12, 24))),
        (lambda value: value[:, :2], [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21]),
        (lambda value: value[::2], [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]),
        (lambda value: value.reshape(-1)[5:9], [5, 6, 7, 8]),
        (lambda value: torch.cat([value[4:], value[:1]]), [*range(16, 24), *range(4)]),
        (lambda value: torch.cat([value[5:], torch.zeros(2, 4)]), list(range(20, 24))),
    ],
    ids=["rows", "columns", "striped", "flat", "reordered", "padded"],
)
def test_a_cut_weight_is_known_by_its_elements(cut: Callable[[torch.Tensor], torch.Tensor], ids: list[int]) -> None:
    assert held(holdings(_with("first.weight", cut))) == {**WHOLE, "first.weight": ids}


def test_fused_weights_are_taken_apart() -> None:
    def fuse(plain: Plain) -> nn.Module:
        fused = nn.Module()
        fused.all = nn.Parameter(torch.cat([plain.first.weight.detach(), plain.second.weight.detach().T[:2, :4]]))
        return fused

    found = held(holdings(fuse))
    assert found == {"first.weight": list(range(24)), "second.weight": [0, 6, 12, 18, 1, 7, 13, 19]}


def test_another_parameters_values_are_seen() -> None:
    found = holdings(lambda plain: _with("second.weight", lambda _: plain.first.weight.detach().T)(plain))
    assert found.misplaced == (("0:second.weight", "second.weight", "first.weight"),)


def test_values_in_another_order_are_seen() -> None:
    assert holdings(_with("first.weight", lambda value: value.reshape(4, 6).T)).mixed == (
        ("0:first.weight", "first.weight"),
    )


def test_values_that_are_nothing_of_the_plain_model_are_lost_or_compared_by_name() -> None:
    assert holdings(_with("first.weight", lambda value: value[:2] + 0.5)).lost == (
        ("0:first.weight", "first.weight"),
    )
    found = holdings(_with("first.weight", lambda value: value + 0.5))
    assert [share.dyed for share in found.shares if share.name == "first.weight"] == [False]
    assert holdings(_with("first.weight", lambda value: value * 0)).empty == (("0:first.weight", "first.weight"),)


OUTPUT = torch.randn(6, 8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "cut",
    [
        lambda value: value,
        lambda value: value[2:4],
        lambda value: value[1::2],
        lambda value: value[:, 4:],
        lambda value: torch.cat([value[:, :2], value[:, 6:]], 1),
        lambda value: value[3:, :, 2:],
        lambda value: value[2:4, 4:, :2],
        lambda value: value[[5, 0, 3]],
        lambda value: value.flatten(0, 1)[10:20],
    ],
    ids=["whole", "rows", "striped", "sequence", "zigzag", "rows-features", "all", "shuffled", "flat"],
)
def test_a_part_of_an_output_is_found_by_its_values(cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = locate(cut(OUTPUT), OUTPUT, 1e-12)
    assert found is not None
    part, _ = found
    assert torch.equal(part.select(OUTPUT), cut(OUTPUT))
    seen = torch.zeros(OUTPUT.shape, dtype=torch.bool)
    part.mark(seen)
    assert int(seen.sum()) == cut(OUTPUT).numel()


def test_values_that_are_no_part_are_not_found() -> None:
    assert locate(OUTPUT[2:4] + 1e-6, OUTPUT, 1e-8) is None
    assert locate(OUTPUT * 2, OUTPUT, 1e-8) is None
    assert locate(torch.zeros(9, 8, 4), OUTPUT, 1e-8) is None


def test_the_part_of_a_batch_is_that_of_what_a_module_makes_of_it() -> None:
    tokens = torch.arange(48.0, dtype=torch.float64).view(6, 8)
    found = locate(tokens[2:4, 4:], tokens, 0.0)
    assert found is not None
    assert torch.equal(found[0].select(OUTPUT), OUTPUT[2:4, 4:])
    assert whole(tokens.shape).select(OUTPUT) is not None


def test_the_file_of_the_plain_models_values_has_no_name() -> None:
    writer = Writer()
    writer.write("weight", OUTPUT)
    contents = writer.end()
    store = Store(contents)
    assert os.stat(contents[0]).st_nlink == 0
    writer.close()
    assert torch.equal(store["weight"], OUTPUT)
    assert store.largest("weight") == float(OUTPUT.abs().max())
