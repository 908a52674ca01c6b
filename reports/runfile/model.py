"""The lines of a run file: one header, one line for each test as it ends, one footer. Each is one line of JSON.

These classes are the schema: ``everyrank schema`` prints them as JSON Schema, and readers check each line against
them. A reader ignores a key that it does not know: it comes from a later version.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from everyrank.model.fault import SweepPart
from everyrank.model.mutation import MutationPart
from everyrank.model.outcome import Ending
from everyrank.model.parity import ParityPart
from everyrank.model.result import BlamePart, LeakPart, RankEnd, StancePart

#: The version of the schema. A reader refuses a newer one. Version 2 has the outcome "interrupted".
SCHEMA = 2

#: Seconds since the epoch, up to the end of the year 9999: a calendar has no later date.
Time = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]


# A line cannot refer to itself, so the garbage collector skips lines. That saves a third of the time to read a large
# file.
class RunFileLine(msgspec.Struct, tag_field="line", frozen=True, omit_defaults=True, gc=False):
    """The base of the lines of a run file."""


class RunFilePart(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A part of a line."""


class LeftOutPart(RunFilePart, frozen=True):
    """Cases that a filter such as ``--optimizer`` left out of the run. They are nowhere else in the file."""

    filter: str  # as it was given: --optimizer SGD
    reason: str  # which cases it leaves out: of other optimizers
    cases: int


class ShardPart(RunFilePart, frozen=True):
    """The part of a run that this file is of, if the run was split by ``--shard``."""

    number: int  # from 1
    count: int
    digest: str  # of which test is whose: the same in all shards of one run
    tests: int  # of this shard; single-process tests count, too
    all_tests: int
    seconds: float = 0.0  # how long its tests took in the file of --shard-times; 0 without one
    all_seconds: float = 0.0


class Header(RunFileLine, tag="header", frozen=True):
    """The first line: the host, the versions, and the tests that will run."""

    schema: int
    kit: str
    torch: str
    python: str
    platform: str
    started: Time
    launcher: str = "fork"
    seed: int = 0
    devices: list[str] = []  # names of the GPUs, empty for none
    backends: list[str] = []
    command: list[str] = []  # pytest's command line
    workers: int = 1
    subjects: dict[str, str] = {}  # the file of each subject's ledger; empty if it has none
    packages: dict[str, str] = {}  # of subjects that name theirs: the package and its version
    commit: str = ""  # of the repository that pytest's root folder is in, according to git or the CI service
    branch: str = ""
    dirty: bool = False  # tracked files differed from the commit
    ci: str = ""  # the CI service that ran it
    ci_link: str = ""  # to the service's page of the run
    cases: list[str] = []  # the ids of all multi-rank tests that were collected, in order; one may be there twice
    left_out: list[LeftOutPart] = []  # the cases that the kit's filters left out
    shard: ShardPart | None = None  # none if the run was not split, or was merged again


class PhasePart(RunFilePart, frozen=True):
    """One phase of the whole test: setup, call or teardown."""

    when: str
    outcome: str  # passed, failed, skipped
    seconds: float


class RankPart(RankEnd, frozen=True, omit_defaults=True):
    """The fate of one rank."""


class AllowedPart(RunFilePart, frozen=True):
    """The largest allowed error: it must be within one of the two bounds. If both are 0, values must be equal."""

    relative: float = 0.0
    ulps: float = 0.0


class ErrorPart(RunFilePart, frozen=True):
    """The largest error of a case against the reference."""

    ulps: float
    absolute: float
    relative: float
    step: int
    name: str  # the parameter
    rank: int
    allowed: AllowedPart | None = None  # missing in files of older versions


class StepPart(RunFilePart, frozen=True):
    """The error after one step of a case: the largest of all parameters and ranks."""

    step: int
    relative: float
    ulps: float


class DeviationPart(RunFilePart, frozen=True):
    """How a case broke its law on some ranks, whether or not a ledger lists it. A ledger's entry may state it."""

    text: str  # one line
    ranks: list[int]
    raised: list[str] = []  # the class of the exception that the subject raised instead, and its base classes
    off: float | None = None  # the largest relative error, if values were compared


class OutputPart(RunFilePart, frozen=True):
    """Captured text, shortened. The texts of ranks that are to blame, or failed, come first."""

    name: str
    text: str
    ranks: list[int] = []  # the ranks that wrote it; empty if unknown, and in files of older versions


class LedgerPart(RunFilePart, frozen=True):
    """The entry of the subject's ledger for the case."""

    kind: str
    issue: str  # a link, or "unreported"; empty for a limit that is documented
    note: str
    file: str = ""
    link: str = ""  # for the kind "documented": the page on which the library states the limit
    expects: str = ""  # the expected outcome, and the deviation that the entry states
    shared: str = ""  # the name of the ledger that the entry is from, if it is another subject's


class CaseLine(RunFileLine, tag="case", frozen=True):
    """One multi-rank test that ended: a case of a subject, or another test (then subject and law are empty)."""

    id: str  # pytest's node id
    outcome: Ending
    rule: str = ""  # which row of the verdict's truth table
    subject: str = ""
    contract: str = ""
    law: str = ""
    case: str = ""  # contract/law[variant-wsN]
    optimizer: str = ""
    message: str = ""  # the failure, or the reason, in one line
    text: str = ""  # the whole failure text
    size: int = 0  # the number of ranks of its world; 0 without a world
    world: str = ""  # the name of its world: a warm world serves many tests
    worker: str = ""  # of pytest-xdist
    started: Time = 0.0
    seconds: float = 0.0
    phases: list[PhasePart] = []
    ranks: list[RankPart] = []
    error: ErrorPart | None = None
    steps: list[StepPart] = []
    deviations: list[DeviationPart] = []
    parity: list[ParityPart] = []  # its calls of everyrank.parity, up to a limit; the last is kept
    parity_calls: int = 0  # how often it called it
    refused: dict[str, str] = {}  # the optional parts of the law that the subject refused, with the error
    leaks: list[LeakPart] = []
    rollcall: list[StancePart] = []
    blame: BlamePart | None = None  # none without evidence, and in files of older versions
    output: list[OutputPart] = []
    ledger: LedgerPart | None = None
    lack: str = ""  # the declared lack that it probed, with its reason
    stated_by: list[str] = []  # of a red case: ledgers to build on that would declare it
    missing: list[str] = []  # the capabilities that its subject turned out to lack without declaring it
    repeat: str = ""  # the command line that repeats it
    passes_alone: bool = False
    not_kept: str = ""  # why its world served no further test; empty if it could, or if the test asked for its own
    remarks: list[str] = []  # on a test that passed: it made no collective
    mutation: MutationPart | None = None  # with --mutate: what became of it with one collective changed at a time
    sweep: SweepPart | None = None  # of the mark faults: what became of it with a fault at each point


class SinglePart(RunFilePart, frozen=True):
    """The single-process tests, which have no lines of their own."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0  # or failed as expected
    failures: list[str] = []  # the ids of those that failed, sorted, up to a limit

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped


class CrossedPart(RunFilePart, frozen=True):
    """How much the green crossings of a subject have asked of it, each beside what those of the full profile ask."""

    contract: str
    subject: str
    scripts: int
    pairs: tuple[int, int]  # of moves in a row
    triples: tuple[int, int]  # of moves in their order
    flows: tuple[int, int]  # of a kind of state, from the move that changes it to one that looks at it


class Footer(RunFileLine, tag="footer", frozen=True):
    """The last line of a whole run. A file without it is not read as a whole run."""

    counts: dict[str, int]  # by outcome, without zeros
    seconds: float
    exit: int  # pytest's exit status
    troubles: list[str] = []  # reasons beside the cases, such as a file that could not be collected
    interrupted: str = ""  # the interruption that ended the run early: Ctrl-C, pytest.exit(), ...
    single: SinglePart | None = None  # none if no such test ran
    crossings: list[CrossedPart] = []  # of a merged run, the largest of its shards


AnyLine = Header | CaseLine | Footer
