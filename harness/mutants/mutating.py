"""``pytest --mutate`` in the process that runs the tests: the time that each test gets, and what it then shows."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import pytest
from everyrank.declare.job import Job
from everyrank.model.mutation import ATTRIBUTE, MutationPart, Observe
from everyrank.model.result import TestResult
from everyrank.mutants.summary import below_floor
from everyrank.mutants.trial import Request, RunAgain, trial
from everyrank.options import MutateOptions, mutate_floor
from everyrank.verdict.fates import Fates


class Mutating:
    """Shares out the budget of a run among its tests, and tries the mutants of each that is green."""

    def __init__(self, config: pytest.Config, request: MutateOptions, tests: int) -> None:
        self._request = request
        self._left = request.budget
        self._tests = tests  # that are still to come

    def begin(self, job: Job) -> Observe:
        """Return what the ranks of the next test are asked for. Raise MisuseError if its mark is wrong."""
        self._tests -= 1
        mutate_floor(job.item, self._request)
        return Observe()

    def try_mutants(self, job: Job, fates: Fates, again: RunAgain) -> MutationPart:
        """Run the mutants of a test that has just passed, in its part of the budget that is left."""
        began = time.monotonic()
        budget = max(0.0, self._left) / (max(0, self._tests) + 1)
        floor = mutate_floor(job.item, self._request)
        part = trial(fates, Request(self._request.seed, budget, floor), again)
        self._left -= time.monotonic() - began
        return part

    def attach(self, part: MutationPart, reports: Sequence[pytest.TestReport], result: TestResult | None) -> None:
        """Attach what became of the mutants to a test's reports and result. A test below its floor fails."""
        setattr(reports[-1], ATTRIBUTE, msgspec.json.encode(part).decode())
        if result is not None:
            result.mutation = part
        if text := below_floor(part):
            call = next(report for report in reports if report.when == "call")
            call.outcome, call.longrepr = "failed", text
