"""What a run file holds: one header, one line a test as it ends, one footer. Each is one line of JSON.

The shapes are the schema: ``everyrank schema`` prints them as JSON Schema, and readers check each line against them.
A key that a reader does not know is of a later version, and passed over.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: The version of the schema. A reader refuses a newer one.
SCHEMA = 1

Ending = Literal[
    "pass", "approximate", "fail", "known", "stale", "unsupported", "not-applicable", "skipped", "error", "timeout",
    "crash", "not-run",
]  # fmt: skip

#: In this order they are counted and shown: what needs a person first.
ENDINGS: tuple[Ending, ...] = (
    "crash", "timeout", "error", "fail", "stale", "not-run", "known", "approximate", "unsupported", "skipped",
    "not-applicable", "pass",
)  # fmt: skip

#: Of a case that ended so, nothing is known: it was not tried.
NOT_TRIED: frozenset[Ending] = frozenset(("not-run", "skipped", "not-applicable"))

#: With these a run is not green.
RED: frozenset[Ending] = frozenset(("crash", "timeout", "error", "fail", "stale", "not-run"))


# No line can hold itself, so the garbage collector need not look into them: a third of the time to read a large file.
class Line(msgspec.Struct, tag_field="line", frozen=True, omit_defaults=True, gc=False):
    """The base of everything in a run file."""


class Part(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A part of a line."""


class LeftOutPart(Part, frozen=True):
    """Cases that a filter such as ``--optimizer`` left out of the run: they stand nowhere else in the file."""

    filter: str  # as it was given: --optimizer SGD
    reason: str  # what those cases are: of other optimizers
    cases: int


class Header(Line, tag="header", frozen=True):
    """What ran where, and the tests that will run; the first line."""

    schema: int
    kit: str
    torch: str
    python: str
    platform: str
    started: float  # seconds since the epoch
    launcher: str = "fork"
    seed: int = 0
    devices: list[str] = []  # names of the GPUs, empty for none
    backends: list[str] = []
    command: list[str] = []  # what pytest was called with
    workers: int = 1
    subjects: dict[str, str] = {}  # the file of each subject's ledger; empty where it has none
    commit: str = ""  # of the repository that pytest's root folder is in, as git or the CI service tells it
    branch: str = ""
    dirty: bool = False  # tracked files differed from the commit
    ci: str = ""  # the CI service that ran it
    ci_link: str = ""  # to the service's page of the run
    cases: list[str] = []  # the ids of all multi-rank tests that were collected, in order; one may be there twice
    left_out: list[LeftOutPart] = []  # what the kit's filters left out


class PhasePart(Part, frozen=True):
    """One phase of the whole test: setup, call or teardown."""

    when: str
    outcome: str  # passed, failed, skipped
    seconds: float


class RankPart(Part, frozen=True):
    """What became of one rank."""

    rank: int
    outcome: str  # passed, failed, skipped, lost (it died, or left without a record), cut (it was ended by us)
    phase: str = ""  # the phase that it failed, or was lost, in
    text: str = ""  # one line: the failure in brief, the exit status, the skip's reason
    where: str = ""  # the frame of the user's code that it came from
    seconds: float = 0.0


class AllowedPart(Part, frozen=True):
    """How large an error may be: within one of the two it is none. Both nought: bit for bit."""

    relative: float = 0.0
    ulps: float = 0.0


class ErrorPart(Part, frozen=True):
    """The largest error of a case against the reference."""

    ulps: float
    absolute: float
    relative: float
    step: int
    name: str  # the parameter
    rank: int
    allowed: AllowedPart | None = None  # not in files from before there was this key


class StepPart(Part, frozen=True):
    """The error after one step of a case, the largest of all parameters and ranks."""

    step: int
    relative: float
    ulps: float


class DeviationPart(Part, frozen=True):
    """How a case broke its law on some ranks, whether or not a ledger knows of it: what an entry may state."""

    text: str  # one line
    ranks: list[int]
    raised: list[str] = []  # the class of the exception that the subject raised instead, and those above it
    off: float | None = None  # the largest relative error, where values were compared


class LeakPart(Part, frozen=True):
    """Something that a test left behind on some ranks."""

    kind: str
    what: str
    ranks: list[int]


class StancePart(Part, frozen=True):
    """The roll call: ranks that were found in one place, innermost frame first; those to blame come first."""

    ranks: list[int]
    doing: str  # one line, as the roll call tells it
    frames: list[str] = []
    native: list[str] = []


class BlamePart(Part, frozen=True):
    """The ranks to blame for a bad end, by evidence."""

    ranks: list[int]
    rule: str  # failed first, does not wait, ended its test, waits in another call, is behind


class OutputPart(Part, frozen=True):
    """Captured text, bounded; that of ranks that are to blame, or failed, comes first."""

    name: str
    text: str
    ranks: list[int] = []  # that said it; empty where that is not known, and in files from before there was this key


class LedgerPart(Part, frozen=True):
    """The entry of the subject's ledger that speaks of the case."""

    kind: str
    issue: str  # a link, or "unreported"; empty for a limit that is documented
    note: str
    file: str = ""
    link: str = ""  # of the kind "documented": where the library states the limit
    expects: str = ""  # what is to be seen: how the case ends, and what of it the entry states


class CaseLine(Line, tag="case", frozen=True):
    """One multi-rank test that ended: a case of a subject, or any other (then subject and law are empty)."""

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
    size: int = 0  # ranks of its world; 0 where it had none
    world: str = ""  # which world it ran in: a warm one serves many tests
    worker: str = ""  # of pytest-xdist
    started: float = 0.0  # seconds since the epoch
    seconds: float = 0.0
    phases: list[PhasePart] = []
    ranks: list[RankPart] = []
    error: ErrorPart | None = None
    steps: list[StepPart] = []
    deviations: list[DeviationPart] = []
    refused: dict[str, str] = {}  # what its law lets a subject refuse and it refused, with the error
    leaks: list[LeakPart] = []
    rollcall: list[StancePart] = []
    blame: BlamePart | None = None  # none without evidence, and in files from before there was this key
    output: list[OutputPart] = []
    ledger: LedgerPart | None = None
    lack: str = ""  # the declared lack that it probed, with its reason
    repeat: str = ""  # the command line that repeats it
    passes_alone: bool = False
    not_kept: str = (
        ""  # why its world served no further test; nothing where it might have, or was asked for as its own
    )


class SinglePart(Part, frozen=True):
    """The tests of one process, which have no lines of their own."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0  # or failed as expected
    failures: list[str] = []  # the ids of those that failed, by name, the first so many

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped


class Footer(Line, tag="footer", frozen=True):
    """The end of a whole run; without it a file is not read as one."""

    counts: dict[str, int]  # by outcome, only those that occurred
    seconds: float
    exit: int  # pytest's exit status
    troubles: list[str] = []  # what went wrong beside the cases, such as a file that could not be collected
    interrupted: str = ""  # what ended the run before its end: Ctrl-C, pytest.exit(), ...
    single: SinglePart | None = None  # none, where no such test ran


AnyLine = Header | CaseLine | Footer
