"""What cannot be compared is reported in one true sentence, with exit code 2; nothing is green that was not seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.script.test_faults import printed, printed_of

pytestmark = pytest.mark.group("clusters")

TRAINS = """
import sys
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(5):
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    model(rows[rank::size]).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= size
    optimizer.step()
"""

#: By what is bad: the script, and what the first lines say after its name.
BAD = {
    "trains nothing": (
        "import torch",
        "one rank: the script ended without a module in training and without an optimizer's step: it trains nothing",
    ),
    "has no torch": ("print(1)", "one rank: the script ended and never imported torch: it trains nothing"),
    "has an optimizer of its own": (
        "import torch\nmodel = torch.nn.Linear(2, 2)\nmodel(torch.ones(2, 2)).sum().backward()",
        "one rank: the script calls backward, and no optimizer of torch's: steps by other means are not seen",
    ),
    "exits": ("import sys\nsys.exit(2)", "one rank: rank 0"),
    "reads": ("input()", "one rank: the script reads standard input, and here it has none"),
    "has no seed": (
        TRAINS.replace("torch.manual_seed(0)", ""),
        "one rank: two runs begin with other values of weight `weight`: set a seed",
    ),
    "has other rows each time": (
        TRAINS.replace("torch.Generator().manual_seed(step)", "None").replace("manual_seed(0)", "seed()"),
        "one rank: two runs are given other rows in step 1: seed the shuffle, and what is made up",
    ),
    "has a loss of nan": (
        TRAINS.replace(".mean().backward", ".mean().sub(99).log().backward"),
        "one rank: step 1: the loss is nan (train.py:13), without any more ranks: mend that first",
    ),
    "has gradients of nan": (
        TRAINS.replace("square().mean().backward", "mul(0).square().mean().sqrt().backward"),
        "one rank: step 1: gradient of `weight` is nan (train.py:17), without any more ranks: mend that first",
    ),
    "has a rank that goes": (
        TRAINS.replace("    optimizer.step()\n", "    optimizer.step()\n    if rank: break\n"),
        "2 ranks: rank 1 ended the script before rank 0 had",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_compared_is_one_sentence(bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, sentence = BAD[bad]
    code, text = printed_of(tmp_path, monkeypatch, script)
    assert (code, text[: len(sentence)]) == (2, sentence), text
    assert "everyrank/parity" not in text, text


@pytest.mark.smoke
def test_a_hang_ends_with_the_roll_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = TRAINS.replace("    optimizer.step()\n", "    optimizer.step()\n    if rank == 1: dist.barrier()\n")
    code, text = printed_of(tmp_path, monkeypatch, hangs)
    assert code == 2, text
    first = "2 ranks: rank 0 waits in its 3rd collective, all_reduce at train.py:15; rank 1 in its 3rd, barrier at "
    assert text.startswith(first), text
    assert "roll call:" in text, text


def test_cuda_and_nccl_are_replaced_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = TRAINS.replace('"gloo"', '"nccl"').replace("nn.Linear(4, 2)", 'nn.Linear(4, 2).to("cuda").to(device)')
    asks = asks.replace("model =", "device = 1 % torch.cuda.device_count(); model =").replace(
        "[rank::size]", "[rank::size].pin_memory()"
    )
    code, text = printed_of(tmp_path, monkeypatch, asks)
    assert (code, text.splitlines()[:3]) == (
        0,
        [
            "2 ranks and one rank: the same training, in 3 steps (20 tensors compared)",
            "  gloo stands for nccl (train.py:5)",
            "  the CPU stands for CUDA (train.py:7)",
        ],
    )


@pytest.mark.parametrize(
    ("right", "wrong", "sentence"),
    [
        (
            "    optimizer.step()",
            "    if rank: model.weight.grad /= 0\n    optimizer.step()",
            "gradient of `weight` is inf on rank 1",
        ),
        (".mean().backward()", ".mean().div(1 - rank).backward()", "loss is inf on rank 1"),
    ],
)
def test_what_is_no_number_on_more_ranks_alone_parts(
    right: str, wrong: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = printed_of(tmp_path, monkeypatch, TRAINS.replace(right, wrong))
    sentence = f"2 ranks and one rank: step 1: {sentence} (train.py"
    assert (code, text[: len(sentence)]) == (1, sentence), text


def test_a_file_that_each_size_writes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = "\n    if rank == 0: torch.save(model, 'kept.pt')\n    if rank == 0: open('log.txt', 'a').close()"
    reads = "\n    open('train.py'), open(f'of-{rank}-{size}.txt', 'w')"
    script = TRAINS.replace("\n    optimizer.step()", f"\n    optimizer.step(){writes}{reads}")
    code, text = printed_of(tmp_path, monkeypatch, script)
    sentence = (
        "  each size writes kept.pt (train.py:18), log.txt (train.py:19) in this place: what is read of them may be "
        "another size's"
    )
    assert (code, text.splitlines()[1:2]) == (0, [sentence]), text


def test_other_batches_are_never_green(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = printed_of(tmp_path, monkeypatch, TRAINS.replace("rows[rank::size]", "rows[rank:]"))
    sentence = (
        "2 ranks and one rank: step 1: 2 ranks train on 15 rows together (7 and 8 on each), and one rank on 8: "
    )
    assert (code, text[: len(sentence)]) == (2, sentence), text


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.py"], "the script none.py does not exist"),
        (["--ranks", "two", "none.py"], "--ranks two is no list of numbers: write --ranks 1,2"),
        (["--ranks", "2", "none.py"], "--ranks 2 is no list of two or more sizes: write --ranks 1,2"),
        (["--steps", "0", "none.py"], "--steps 0 compares nothing: write --steps 1 or more"),
        ([], "name the script: everyrank parity train.py, or everyrank parity -m package.train"),
        (["."], "the script . is a folder"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments: list[str], sentence: str) -> None:
    assert printed(*arguments) == (2, f"everyrank parity: {sentence}\n")


def test_ranks_that_are_ended_leave_no_semaphore_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """multiprocessing removes them itself only where a process ends in order."""
    made = "import multiprocessing as mp, multiprocessing.util, os; lock = mp.get_context('spawn').Lock()\n"
    names = "print(lock._semlock.name, mp.util.get_temp_dir(), file=open(f'left-{os.getpid()}', 'w'))\n"
    script = TRAINS.replace("dist.init", f"{made}{names}dist.init")
    code, text = printed_of(tmp_path, monkeypatch, script)
    assert code == 0, text
    left = [path.read_text().split() for path in tmp_path.glob("left-*")]
    assert len(left) == 4
    assert [name for name, folder in left if Path(f"/dev/shm/sem.{name[1:]}").exists() or Path(folder).exists()] == []


@pytest.mark.smoke
def test_a_folder_with_files_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    arguments = "--keep", str(tmp_path), str(tmp_path / "train.py")
    sentence = f"--keep {tmp_path} has files: name a new or an empty folder"
    assert printed(*arguments) == (2, f"everyrank parity: {sentence}\n")


def test_the_time_limit_ends_with_the_roll_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps = TRAINS.replace("    optimizer.step()\n", "    optimizer.step()\n    import time; time.sleep(3600)\n")
    code, text = printed_of(tmp_path, monkeypatch, sleeps, "--limit", "25")
    assert code == 2, text
    assert "the time limit was over: --limit SECONDS gives more" in text, text
    assert "at train.py:18" in text, text
