"""Run files that no run wrote: of any size, from a seed, with every outcome and the texts that break pages."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from everyrank.model.outcome import Ending
from everyrank.model.result import BlamePart, LeakPart, StancePart
from everyrank.reports.runfile.model import (
    SCHEMA,
    AnyLine,
    CaseLine,
    ErrorPart,
    Footer,
    Header,
    LedgerPart,
    OutputPart,
    PhasePart,
    RankPart,
    StepPart,
)

#: subject: (contract, ledger's file)
SUBJECTS = {
    "torch.DistributedOptimizer.eager": ("rpc-optimizer", "suites/rpc_optimizer/eager.toml"),
    "torch.ShardedOptimizer": ("sharded-optimizer", "suites/sharded_optimizer/torch.toml"),
    "torch.replicate": ("replicate", "suites/replicate/replicate.toml"),
    "everyrank.RpcOptimizer": ("rpc-optimizer", ""),
    'mine.<script>alert("x")</script>': ("replicate", ""),
}

LAWS = {
    "rpc-optimizer": ("parity.one-step", "none.position", "context.own", "errors.several", "state.kept"),
    "sharded-optimizer": ("parity.shard", "parity.geometry", "clip", "state.round-trip", "tied"),
    "replicate": ("parity.train", "init.sync", "buffers", "uneven", "clip"),
}

OPTIMIZERS = (
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "LBFGS",
    "Muon",
    "NAdam",
    "RMSprop",
    "SGD",
    "SparseAdam",
)

#: Of a hundred cases, about as many end so.
COMMON: dict[Ending, int] = {
    "pass": 70, "known": 8, "unsupported": 6, "not-applicable": 5, "approximate": 4, "fail": 2, "skipped": 1,
    "stale": 1, "error": 1, "timeout": 1, "crash": 1, "not-run": 1,
}  # fmt: skip

#: Texts that break a page, a table or a terminal which takes them as they are.
NASTY = (
    "<script>window.broken = 1</script>",
    "</script><script>window.broken = 2</script>",
    "<!-- <script>",
    '" onmouseover="window.broken = 3',
    "line\u2028separator\u2029and | pipes | and `ticks`",
    "\u202eright to left\u202c, \x1b[31mred\x1b[0m, \N{PILE OF POO}, a\ttab",
    "${window.broken = 4} {{ 7 * 7 }} {% raw %}",
    "x" * 3000,
)


@dataclass(frozen=True)
class MadeUp:
    """The lines of one run."""

    header: Header
    cases: tuple[CaseLine, ...]
    footer: Footer | None

    @property
    def lines(self) -> list[AnyLine]:
        end: list[AnyLine] = [self.footer] if self.footer is not None else []
        return [self.header, *self.cases, *end]

    @property
    def data(self) -> bytes:
        """As the file holds them."""
        return b"".join(msgspec.json.encode(line) + b"\n" for line in self.lines)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.data)
        return path

    def but(self, changes: dict[str, dict[str, Any]]) -> MadeUp:
        """The same run, in which the cases with these ids ended otherwise."""
        cases = [msgspec.structs.replace(case, **changes.get(case.id, {})) for case in self.cases]
        return run_of(self.header, cases)

    def cut_after(self, reported: int) -> MadeUp:
        """The same run, killed when this many cases were reported."""
        return replace(self, cases=self.cases[:reported], footer=None)

    def stopped_after(self, reported: int) -> MadeUp:
        """The same run, ended by ``-x`` when this many cases were reported."""
        return replace(self, cases=self.cases[:reported], footer=_footer(self.cases[:reported]))


def run_of(header: Header, cases: Sequence[CaseLine]) -> MadeUp:
    """The run of these cases: all of them listed, all of them reported."""
    listed = msgspec.structs.replace(header, cases=[case.id for case in cases])
    return MadeUp(listed, tuple(cases), _footer(cases))


def header(**changes: Any) -> Header:
    return Header(
        **{
            "schema": SCHEMA, "kit": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.9", "platform": "Linux x86_64",
            "started": 1_780_000_000.0, "seed": 1, "backends": ["gloo"], "workers": 2,
            "command": ["pytest", "suites/", "-n", "2"], **changes,
        }
    )  # fmt: skip


def case(law: str = "parity.one-step", label: str = "SGD", outcome: Ending = "pass", **changes: Any) -> CaseLine:
    """One case of a subject, as a test would write it down."""
    contract = changes.setdefault("contract", "rpc-optimizer")
    subject = changes.setdefault("subject", "mine.Optimizer")
    test = changes.pop("test", f"test_mine.py::test_{subject.rpartition('.')[2].lower()}")
    short = changes.pop("case", f"{contract}/{law}[{label}-ws2]")
    known = {"optimizer": label.partition("-")[0], "size": 2, "seconds": 0.1, **changes}
    return CaseLine(id=f"{test}[{short}]", case=short, law=law, outcome=outcome, **known)


def made_up(seed: int = 0, cases: int = 200, workers: int = 2, nasty: bool = True, **header_changes: Any) -> MadeUp:
    """Make a run of this many cases of five subjects, and a few tests of no subject, over this many workers."""
    chance = random.Random(seed)
    start = header(workers=workers, subjects={name: file for name, (_, file) in SUBJECTS.items()}, **header_changes)
    busy = [start.started] * workers
    lines = []
    for number, plain in enumerate(sorted(_plain(cases), key=_position)):
        worker = min(range(workers), key=busy.__getitem__)
        ending = chance.choices(list(COMMON), list(COMMON.values()))[0]
        line = _ended(chance, plain, ending, worker, busy[worker], number, nasty)
        busy[worker] += line.seconds
        lines.append(line)
    listed = [line.id for line in lines]
    lines.sort(key=lambda line: line.started + line.seconds)
    whole = run_of(start, lines)
    return replace(whole, header=msgspec.structs.replace(whole.header, cases=listed))


def _position(case: CaseLine) -> tuple[int, int]:
    """As pytest collects them: law by law of one subject after the other, then what has no subject."""
    if not case.subject:
        return len(SUBJECTS), 0
    return list(SUBJECTS).index(case.subject), LAWS[case.contract].index(case.law)


def _plain(cases: int) -> Iterable[CaseLine]:
    """Cases before they ran: each law of each subject, by turns, and every fiftieth of no subject."""
    seen: Counter[str] = Counter()
    for number in range(cases):
        if number % 50 == 49:
            value, size = "<b>bold</b>" if number == 49 else number, 2 + number % 3
            yield CaseLine(id=f"test_collectives.py::test_all_reduce[{value}-ws{size}]", outcome="pass", size=size)
            continue
        subject = list(SUBJECTS)[number % len(SUBJECTS)]
        contract, file = SUBJECTS[subject]
        law = LAWS[contract][number // len(SUBJECTS) % 5]
        optimizer = OPTIMIZERS[number // 25 % len(OPTIMIZERS)]
        seen[subject + law + optimizer] += 1
        label = f"{optimizer}-v{seen[subject + law + optimizer]}"
        size = 2 + number % 3
        short = f"{contract}/{law}[{label}-ws{size}]"
        test = (
            f"suites/{contract.replace('-', '_')}/test_{contract.replace('-', '_')}.py::test_{number % len(SUBJECTS)}"
        )
        ledger = LedgerPart(kind="fail", issue="unreported", note=f"{law} does not hold", file=file)
        yield CaseLine(
            id=f"{test}[{short}]", outcome="pass", subject=subject, contract=contract, law=law, case=short,
            optimizer=optimizer, size=size, ledger=ledger if file else None,
        )  # fmt: skip


def _ended(
    chance: random.Random, plain: CaseLine, ending: Ending, worker: int, started: float, number: int, nasty: bool
) -> CaseLine:
    if not plain.subject and ending not in ("pass", "fail", "skipped", "error", "timeout", "crash"):
        ending = "pass"
    if ending == "known" and plain.ledger is None:
        ending = "pass"
    ran = ending not in ("not-run", "not-applicable", "skipped")
    seconds = round(chance.lognormvariate(-3, 0.8), 4) if ran else 0.001
    seconds += 30 if ending == "timeout" else 0
    tail = f" {NASTY[number % len(NASTY)]}" if nasty and number % 7 == 0 else ""
    message = "" if ending == "pass" else f"{ending}: step 3, parameter layers.0.weight, on rank 1{tail}"
    bad = ending in ("fail", "error", "timeout", "crash", "stale")
    compared = ran and plain.subject and ending not in ("error", "timeout", "crash", "unsupported")
    steps = _steps(chance, wrong=ending in ("fail", "known")) if compared else []
    return msgspec.structs.replace(
        plain,
        outcome=ending,
        rule={"timeout": "deadline", "crash": "lost", "pass": "passed", "skipped": "all skipped"}.get(
            ending, "failed"
        ),
        message=message,
        text=f"[{ending}] {plain.subject} {plain.case}\n  {message}\n" + "  a line of the failure\n" * 5
        if bad
        else "",
        size=plain.size if ran else 0,
        world=f"gw{worker}-{number // 40}" if ran else "",
        worker=f"gw{worker}",
        started=started,
        seconds=seconds,
        phases=[
            PhasePart("setup", "passed", round(seconds * 0.2, 4)),
            PhasePart("call", "failed" if bad else "passed", round(seconds * 0.7, 4)),
            PhasePart("teardown", "passed", round(seconds * 0.1, 4)),
        ],
        ranks=_ranks(plain.size, ending, message) if ran else [],
        error=_error(chance, steps),
        steps=steps,
        leaks=[LeakPart("thread", f"pt_gloo_runner{tail}", [1])] if number % 97 == 3 else [],
        rollcall=_rollcall(plain.size) if ending in ("timeout", "crash") else [],
        blame=BlamePart([plain.size - 1], "waits in another call") if ending == "timeout" else None,
        output=[OutputPart("stdout of rank 1", f"epoch 1{tail}\n" * 3)] if bad or number % 41 == 0 else [],
        ledger=plain.ledger if ending in ("known", "stale") else None,
        lack="sparse gradients are not done yet" if ending == "unsupported" else "",
        repeat=f"pytest '{plain.id}'" if bad else "",
        passes_alone=ending == "fail" and number % 5 == 0,
    )


def _ranks(size: int, ending: Ending, message: str) -> list[RankPart]:
    outcomes = ["passed"] * size
    if ending in ("fail", "error", "stale"):
        outcomes = ["failed"] + ["cut"] * (size - 1)
    elif ending == "timeout":
        outcomes = ["cut"] * size
    elif ending == "crash":
        outcomes = ["cut"] * (size - 1) + ["lost"]
    return [
        RankPart(
            rank, outcome, "" if outcome == "passed" else "call",
            "killed by SIGKILL" if outcome == "lost" else message if outcome == "failed" else "",
            "" if outcome == "passed" else f"mylib/train.py:{40 + rank} in step", 0.05,
        )
        for rank, outcome in enumerate(outcomes)
    ]  # fmt: skip


def _steps(chance: random.Random, wrong: bool) -> list[StepPart]:
    first = 1e-3 if wrong else chance.choice((0.0, 0.0, 1e-16))
    return [StepPart(step, first * 1.5**step, first * 1.5**step / 2.2e-16) for step in range(1, 11)]


def _error(chance: random.Random, steps: list[StepPart]) -> ErrorPart | None:
    if not steps:
        return None
    worst = max(steps, key=lambda step: step.relative)
    return ErrorPart(
        worst.ulps, worst.relative / 3, worst.relative, worst.step, "layers.0.weight", chance.randrange(2)
    )


def _rollcall(size: int) -> list[StancePart]:
    frames = ["mylib/loop.py:40 in step", "torch/distributed/distributed_c10d.py:2800 in all_reduce"]
    odd = StancePart([size - 1], "is in recv at loop.py:38", ["mylib/loop.py:38 in fetch"], ["poll", "recv"])
    return [odd, StancePart(list(range(size - 1)), "wait in all_reduce at loop.py:40", frames, ["epoll_wait"])]


def _footer(cases: Sequence[CaseLine]) -> Footer:
    counts = dict(Counter(case.outcome for case in cases))
    red = {"crash", "timeout", "error", "fail", "stale", "not-run"} & counts.keys()
    return Footer(counts=counts, seconds=sum(case.seconds for case in cases), exit=1 if red else 0)
