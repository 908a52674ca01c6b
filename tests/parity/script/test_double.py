"""`everyrank parity --fp64` separates rounding from a fault, and refuses a script that is in double only in part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.parity.script.test_faults import SCRIPTS, printed, printed_of

pytestmark = pytest.mark.group("clusters")

PAGE = Path(__file__).parents[3] / "docs/parity-scripts.md"
IN_DOUBLE = "run in double at every size (--fp64)"
BEGIN = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rank, size = dist.get_rank(), dist.get_world_size()
between = lambda rows: rows
"""
LOOP = """
for step in range(4):
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    between(model(rows[rank::size])).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= size
    optimizer.step()
"""
SMALL = LOOP.replace("/= size", "/= size * (1 + 1e-6 * (size > 1))")

IN_FP32 = """
@torch.library.custom_op("mine::norm", mutates_args=())
def norm(rows: torch.Tensor) -> torch.Tensor:
    return (rows.float() / 3).to(rows.dtype)
norm.register_autograd(lambda context, grad: grad / 3)
between = norm
"""
REFUSES = """
@torch.library.custom_op("mine::norm", mutates_args=())
def norm(rows: torch.Tensor) -> torch.Tensor:
    if rows.dtype == torch.float64: raise RuntimeError("expected scalar type Float but found Double")
    return rows / 3
norm.register_autograd(lambda context, grad: grad / 3)
between = norm
"""
#: By what cannot be in double: the lines that make it so, and the sentence.
NARROW = {
    "a kernel that computes in fp32": (IN_FP32, "`mine::norm` computes in fp32 (train.py:13)"),
    "a kernel that takes no fp64": (REFUSES, "`mine::norm` takes no fp64 (train.py:21)"),
    "a quantized layer": (
        "coded = torch.ao.nn.quantized.dynamic.Linear(2, 2)\nbetween = lambda rows: rows + coded(rows.detach())",
        "`_empty_affine_quantized` returns qint8 (train.py:10)",
    ),
    "a cast to float8": (
        "between = lambda rows: rows + rows.detach().to(torch.float8_e4m3fn).to(rows.dtype)",
        "`_to_copy` returns float8_e4m3fn (train.py:10)",
    ),
}


@pytest.mark.smoke
def test_whatever_names_another_dtype_is_widened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPTS)
    torch.save(torch.randn(8, 6), tmp_path / "kept.pt")
    code, text = printed("--fp64", "double.py", str(tmp_path / "kept.pt"))
    assert code == 0, text
    assert text.startswith("everyrank parity: double.py, 2 ranks and one rank: the same training, in 3 steps"), text
    assert IN_DOUBLE in text, text


def test_rounding_that_grows_parts_in_fp32_and_not_in_double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.read_text().partition("## Rounding or a fault?")[2]
    script = section.partition("```text\n")[2].partition("```")[0]
    code, text = printed_of(tmp_path, monkeypatch, script)
    assert (code, "--fp64 runs it all in double" in text, IN_DOUBLE in text) == (1, True, False), text
    code, text = printed_of(tmp_path, monkeypatch, script, "--fp64")
    verdict = section.partition("```text\neveryrank parity: train.py, ")[2].partition("```")[0]
    assert (code, text[: len(verdict)]) == (0, verdict), text


def test_a_fault_that_is_less_than_rounding_is_found_in_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = printed_of(tmp_path, monkeypatch, BEGIN + SMALL)
    assert (code, IN_DOUBLE in text) == (0, False), text
    code, text = printed_of(tmp_path, monkeypatch, BEGIN + SMALL, "--fp64")
    first = "2 ranks and one rank: step 1: gradient of `weight` is 0.999999 times one rank's on ranks 0 and 1 ("
    assert (code, text[: len(first)], IN_DOUBLE in text) == (1, first, True), text
    assert "--fp64 runs" not in text, text


@pytest.mark.parametrize("narrow", NARROW)
def test_what_cannot_be_in_double_is_named(narrow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, sentence = NARROW[narrow]
    code, text = printed_of(tmp_path, monkeypatch, BEGIN + lines + LOOP, "--fp64")
    wanted = f"one rank: not in double, so nothing is said: {sentence}"
    assert (code, text[: len(wanted)]) == (2, wanted), text
    assert "everyrank/parity" not in text, text
