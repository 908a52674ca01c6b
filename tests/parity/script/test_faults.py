"""`everyrank parity train.py` names a planted mistake in its first line; an honest script is the same training."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path

import pytest
import torch
from everyrank.cli import main

pytestmark = pytest.mark.group("clusters")  # each starts interpreters
SCRIPTS = Path(__file__).parent / "scripts"

_OWN_PART = (
    "step 1: gradient of `up.weight`, as the clip gets it, is not reduced over ranks: each of ranks 0 and 1 has its "
    "own part{} (train.py:68), as 3 others of its kind"
)

#: By the mistake that is planted: what the first line says after the sizes.
FAULTS = {
    "not-averaged": _OWN_PART.format(""),
    "divided-twice": "step 1: gradient of `up.weight`, as the clip gets it, is 1/2 of one rank's on ranks 0 and 1: "
    "the number of ranks, or of microbatches (train.py:68), as 3 others of its kind",
    "clip-before-reduce": _OWN_PART.format(": ranks are made alike only after the clip"),
    "no-set-epoch": "the DistributedSampler begins a second epoch in the order of the first (train.py:57): call "
    "sampler.set_epoch(epoch) before each",
    "same-rows": "step 1: ranks 0 and 1 train on the same 8 rows, and no rank on 8 of the 16 rows of one rank: no "
    "sampler deals them out",
    "seed-by-rank": "before step 1: weight `up.weight` is right on rank 0 and wrong on rank 1, as 3 others of its "
    "kind",
    "buffers-apart": "step 2: buffer `mean` is wrong on ranks 0 and 1, on each in another way (train.py:62)",
    "scheduler-by-rank": "step 2: learning rate is 0.0025 instead of 0.005 on ranks 0 and 1 (train.py:71)",
    "state-not-loaded": "step 1: the optimizer's `step` of `up.weight` is missing on rank 1 (train.py:71), as 11 "
    "others of its kind",
    "never-syncs": _OWN_PART.format(""),
}


def printed(*arguments: str) -> tuple[int, str]:
    """Return the exit code of the command, and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        with tempfile.TemporaryDirectory() as folder:
            code = main(["parity", "--keep", folder, *arguments])
    return code, out.getvalue()


def printed_of(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, *options: str) -> tuple[int, str]:
    """Return the same of a script of this text, which is written into a folder."""
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(script)
    code, text = printed(*options, "train.py")
    return code, text.removeprefix("everyrank parity: train.py, ")


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = torch.nn.Module()
    net.up, net.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "kept.pt")
    monkeypatch.setenv("CHECKPOINT", str(tmp_path / "kept.pt"))


@pytest.mark.usefixtures("checkpoint")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_mistake_is_named_in_the_first_line(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPTS)
    code, text = printed("train.py", fault)
    first = text.partition("\n")[0]
    assert (code, first) == (1, f"everyrank parity: train.py, 2 ranks and one rank: {FAULTS[fault]}"), text


@pytest.mark.smoke
def test_an_honest_script_is_the_same_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPTS)
    code, text = printed("train.py")
    assert code == 0, text
    assert text.startswith("everyrank parity: train.py, 2 ranks and one rank: the same training, in 3 steps")
    assert sorted(os.listdir(SCRIPTS)) == ["double.py", "train.py"]
