"""`everyrank.parity.observe` records a training that others have started; records part as a script's sizes do."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from everyrank.cli import main
from everyrank.parity import Unusable, compare, observe
from everyrank.parity.script.kept import Kept
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import optimizer

from tests.parity.script.test_faults import printed

TRAINS = """
import os, sys
import torch, torch.distributed as dist
from everyrank.parity import observe
from torch import nn
from torch.nn.utils import clip_grad_norm_

def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(5):
        rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(rows[rank::size]).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= size if "wrong" not in sys.argv else 1
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    dist.barrier()

dist.init_process_group("gloo")
if "RECORD" in os.environ:
    with observe(os.environ["RECORD"], moved="moved" in sys.argv):
        train()
else:
    train()
"""


def _started(script: Path, record: Path, size: int, *arguments: str) -> None:
    """Run the script as somebody else would, in processes that know no more than where they meet."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RECORD": str(record)}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, *arguments],
            cwd=script.parent,
            env={**os.environ, **shared, "RANK": str(rank)},
        )
        for rank in range(size)
    ]
    assert [rank.wait() for rank in ranks] == [0] * size


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    script = folder / "train.py"
    script.write_text(TRAINS)
    _started(script, folder / "one", 1)
    _started(script, folder / "moved", 1, "moved")
    _started(script, folder / "two", 2)
    _started(script, folder / "wrong", 2, "wrong")
    return folder


@pytest.mark.group("clusters")
def test_records_of_an_honest_script_are_the_same_training(records: Path) -> None:
    for moved in (records / "moved", None):
        found = compare(records / "one", records / "two", moved=moved)
        first = str(found).partition("\n")[0]
        assert (found.code, first.partition(" (")[0]) == (
            0,
            "everyrank parity: train.py, 2 ranks and one rank: the same training, in 3 steps",
        )
        assert found.passed


@pytest.mark.group("clusters")
def test_a_fault_begins_as_the_command_has_it(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(records)
    code, text = printed("train.py", "wrong")
    first = text.partition("\n")[0]
    assert (code, first[:80]) == (
        1,
        "everyrank parity: train.py, 2 ranks and one rank: step 1: gradient of `0.weight`"[:80],
    )
    for moved in (records / "moved", None):
        found = compare(records / "one", records / "wrong", moved=moved)
        assert (found.code, str(found).partition("\n")[0]) == (1, first)


@pytest.mark.group("clusters")
def test_the_command_compares_records_and_writes_a_run_file(records: Path, tmp_path: Path) -> None:
    code, text = _command(
        "--compare", str(records / "one"), str(records / "wrong"), "--run-file", f"{tmp_path}/r.jsonl"
    )
    assert (code, text.partition(" step 1: ")[0]) == (1, "everyrank parity: train.py, 2 ranks and one rank:")
    assert '"train.py::parity[ws2]","outcome":"fail"' in (tmp_path / "r.jsonl").read_text()


@pytest.mark.group("clusters")
def test_records_of_equal_sizes_have_their_folders_as_names(records: Path) -> None:
    found = compare(records / "two", records / "wrong")
    assert str(found).startswith(
        f"everyrank parity: train.py, 2 ranks of {records}/wrong and 2 ranks of {records}/two: "
    )


def _command(*arguments: str) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main(["parity", *arguments])
    return code, out.getvalue()


# --- in this process -------------------------------------------------------------------------------


def _train(scale: float = 1.0, width: int = 4, steps: int = 4, name: str = "up") -> nn.Module:
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(4, width)})
    net = model[name]
    root = _Root(name, net)
    sgd = torch.optim.SGD(root.parameters(), lr=0.1)
    for step in range(steps):
        rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        sgd.zero_grad()
        (root(rows).square().mean() * scale).backward()
        clip_grad_norm_(root.parameters(), 100.0)
        sgd.step()
    return root


class _Root(nn.Module):
    def __init__(self, name: str, net: nn.Module) -> None:
        super().__init__()
        self.add_module(name, net)
        self.net = [net]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net[0](rows)
        return found


@pytest.mark.smoke
def test_a_record_is_compared_in_a_notebook(tmp_path: Path) -> None:
    with observe(tmp_path / "one") as first:
        _train()
    with observe(tmp_path / "two") as two:
        _train(scale=2.0)
    assert first.compare(first).passed
    assert "the same training, in 3 steps (" in first.compare(first).text
    found = two.compare(first)
    assert found.code == 1
    assert "step 1: loss is" in found.text, found.text


@pytest.mark.smoke
def test_what_is_observed_trains_as_without_it_and_goes_on(tmp_path: Path) -> None:
    before = torch.Tensor.backward, torch.autograd.backward, nn.utils.clip_grad._clip_grads_with_norm_
    plain = _train(steps=6)
    with observe(tmp_path / "one", steps=2):
        seen = _train(steps=6)
    assert all(map(torch.equal, plain.parameters(), seen.parameters()))
    assert (torch.Tensor.backward, torch.autograd.backward, nn.utils.clip_grad._clip_grads_with_norm_) == before
    assert not nn.modules.module._global_forward_pre_hooks
    assert not optimizer._global_optimizer_pre_hooks


@pytest.mark.smoke
def test_a_later_record_replaces_an_earlier_record(tmp_path: Path) -> None:
    for scale in (2.0, 1.0):
        with observe(tmp_path / "one"):
            _train(scale)
    with observe(tmp_path / "two") as two:
        _train()
    assert two.compare(tmp_path / "one").passed
    assert [each.name for each in (tmp_path / "one").iterdir()] == ["rank-0"]


@pytest.mark.smoke
def test_without_a_moved_record_what_may_be_rounding_is_unknown(tmp_path: Path) -> None:
    with observe(tmp_path / "one"):
        _train()
    with observe(tmp_path / "moved", moved=True):
        _train()
    with observe(tmp_path / "two") as two:
        _train(scale=1 + 1e-4)
    assert two.compare(tmp_path / "one", tmp_path / "moved").code == 1
    found = two.compare(tmp_path / "one")
    assert found.code == 2
    assert found.text.startswith("everyrank parity: test_observe.py, one rank of "), found.text
    assert "maybe by rounding, maybe because the reference is not the same each time" in found.text


# --- bad use ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _refused(text: str) -> Iterator[None]:
    with pytest.raises(Unusable) as caught:
        yield
    assert str(caught.value) == text


@pytest.mark.smoke
def test_a_block_without_a_step_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "one")
    with _refused(
        f"observe({folder!r}) has nothing to record: the block ended without a module in training and without an "
        "optimizer's step: it trains nothing"
    ):
        with observe(folder):
            pass
    assert os.listdir(folder) == []


@pytest.mark.smoke
def test_a_block_inside_of_another_is_refused(tmp_path: Path) -> None:
    with observe(tmp_path / "one"):
        _train()
        with _refused(
            f"observe({str(tmp_path / 'two')!r}) begins inside of observe({str(tmp_path / 'one')!r}): a process "
            "records one training at a time"
        ):
            with observe(tmp_path / "two"):
                raise AssertionError
    assert not (tmp_path / "two").exists()


@pytest.mark.smoke
def test_an_error_inside_goes_on_and_leaves_no_record(tmp_path: Path) -> None:
    def fails() -> None:
        with observe(tmp_path / "one"):
            _train()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fails()
    assert os.listdir(tmp_path / "one") == []


@pytest.mark.smoke
def test_bad_records_are_one_sentence(tmp_path: Path) -> None:
    first, other, none, moved = (tmp_path / name for name in ("one", "other", "none", "moved"))
    with observe(first):
        _train()
    with observe(moved, moved=True):
        _train()
    with observe(other):
        _train(name="down")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with _refused("observe(steps=0) compares nothing: write steps=1 or more"):
        observe(first, steps=0)
    with _refused(f"{tmp_path}/file is a file: name a folder for the record"):
        observe(tmp_path / "file").__enter__()
    with _refused(f"{none} does not exist"):
        compare(first, none)
    with _refused(f"{tmp_path}/empty holds no record of everyrank.parity.observe()"):
        compare(first, tmp_path / "empty")
    with _refused(f"a record is compared with another: name one beside {first}"):
        compare(first)
    with _refused(
        f"{other} is of another script: its _Root has no weight by the name of one of the _Root of {first}"
    ):
        compare(first, other)
    with _refused(f"{moved} was recorded with moved=True, which is for the record of moved= alone"):
        compare(first, moved)
    with _refused(f"{first} was not recorded with moved=True, so it does not show how far off rounding is"):
        compare(first, first, moved=first)
    takes = "everyrank parity: --compare takes two folders of records or more, the reference first, and no script\n"
    assert _command("--compare", str(first)) == (2, takes)
    assert _command("--compare", str(first), str(none)) == (2, f"everyrank parity: {none} does not exist\n")


@pytest.mark.smoke
def test_a_record_that_is_not_whole_is_one_sentence(tmp_path: Path) -> None:
    first, two = tmp_path / "one", tmp_path / "two"
    for folder in (first, two):
        with observe(folder):
            _train()
    kept = Kept(two / "rank-0")
    facts = kept.facts()
    assert facts is not None
    facts.size = 2
    kept.write_facts(facts)
    with _refused(
        f"{two} has no record of rank 1 of 2: each process has a with block of its own, and comes to its end"
    ):
        compare(first, two)
    (first / "rank-0").rename(two / "rank-1")
    with _refused(f"{two} holds ranks of several trainings, in worlds of 1 and of 2: remove it, and record again"):
        compare(two, two)
    later = Kept(two / "rank-1")
    facts.began = facts.ended = facts.ended + 3600
    later.write_facts(facts)
    with _refused(f"{two} holds ranks of several trainings, at other times: remove it, and record again"):
        compare(two, two)


@pytest.mark.smoke
def test_a_process_that_was_killed_leaves_nothing_once_its_folder_is_used_again(tmp_path: Path) -> None:
    process = os.fork()
    if not process:
        observe(tmp_path).__enter__()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    assert [name.rpartition("-")[2] for name in os.listdir(tmp_path)] == [str(process)]
    with observe(tmp_path):
        _train()
    assert os.listdir(tmp_path) == ["rank-0"]
