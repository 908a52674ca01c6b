"""Sharded optimizers that nobody here wrote, and that do what the contract asks for and nothing else, are green."""

from __future__ import annotations

import pytest
import torch
from everyrank.suites.sharded_optimizer.arena import averageable

from tests.inner import Inner, Project

_SUBJECTS = """
    import io
    import torch
    from everyrank.fixtures.exemplars.sharded_optimizer import ELEMENTWISE, ShardedOptimizer
    from everyrank.suites import Lack, Subject, conformance

    class LikeItsBase(ShardedOptimizer):
        def looks_at_wholes(self, optimizer_class):
            return not issubclass(optimizer_class, tuple(ELEMENTWISE))

    class KnownClassesOnly(ShardedOptimizer):
        def __init__(self, optimizer_class, *args, **kwargs):
            if optimizer_class not in ELEMENTWISE:
                raise NotImplementedError(f"{optimizer_class.__name__} is not known to treat elements alone")
            super().__init__(optimizer_class, *args, **kwargs)

    class OwnForm(ShardedOptimizer):
        def state_dict(self):
            file = io.BytesIO()
            torch.save(super().state_dict(), file)
            return {"format": 2, "bytes": file.getvalue()}

        def load_state_dict(self, state):
            super().load_state_dict(torch.load(io.BytesIO(state["bytes"]), weights_only=False))

    UNKNOWN = Lack(NotImplementedError, "classes that are known to treat elements alone, and no other")
    CASES = ("parity.subclass[*]", "parity.whole-tensor[*]", "errors.rank[step-*]", "errors.rank[after-step-*]",
             "closure[LBFGS-*]")
    LACKS = {case: UNKNOWN for case in CASES} | {
        f"state.*[{name}-*]": UNKNOWN for name in ("Adafactor", "LBFGS", "Muon")
    }

    @conformance(Subject("like-its-base", contract="sharded-optimizer", build=LikeItsBase))
    def test_like_its_base(case): case.run()

    @conformance(Subject("known-only", contract="sharded-optimizer", build=KnownClassesOnly, lacks=LACKS))
    def test_known_only(case): case.run()

    @conformance(Subject("own-form", contract="sharded-optimizer", build=OwnForm))
    def test_own_form(case): case.run()
"""

_CHOSEN = {
    "test_like_its_base": ("parity.subclass[signed", "parity.subclass[unchanged-Adam-", "whole-tensor[Muon-subclass"),
    "test_known_only": ("errors.rank", "parity.subclass[signed", "whole-tensor[Muon-subclass"),
    "test_own_form": ("state.round-trip[Adam-", "state.round-trip[reordered", "state.groups[SGD-groups-ws"),
}


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    module_project.write("test_inner.py", _SUBJECTS)
    chosen = " or ".join(f"({test} and ({' or '.join(cases)}))" for test, cases in _CHOSEN.items())
    return module_project.run("-W", "ignore", "--profile=full", "-k", chosen)


def test_a_subclass_may_be_trusted_to_look_at_what_its_base_looks_at(inner: Inner) -> None:
    ends = inner.endings("test_like_its_base")
    assert len(ends) == 3
    assert set(ends.values()) == {"pass"}


def test_classes_that_are_not_known_may_be_refused_and_errors_are_still_judged(inner: Inner) -> None:
    ends = inner.endings("test_known_only")
    lacking = {case for case, outcome in ends.items() if outcome == "unsupported"}
    of_errors = {case for case in ends if case.startswith("errors.rank")}
    assert {case.partition("-rank")[0] for case in lacking & of_errors} == {
        "errors.rank[step",
        "errors.rank[after-step",
    }
    assert {ends[case] for case in of_errors - lacking} == {"pass"}
    assert len(of_errors - lacking) == 24
    assert lacking - of_errors == set(ends) - of_errors


def test_a_state_may_have_any_form(inner: Inner) -> None:
    ends = inner.endings("test_own_form")
    assert len(ends) == 5
    assert set(ends.values()) == {"pass"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128], ids=str)
@pytest.mark.parametrize("ranks", range(1, 6))
def test_whoever_adds_and_divides_gets_the_same_mean(ranks: int, dtype: torch.dtype) -> None:
    drawn = [torch.randn(500, dtype=dtype, generator=torch.Generator().manual_seed(rank)) for rank in range(ranks)]
    given = [averageable(value, ranks) for value in drawn]
    for value, made in zip(drawn, given, strict=True):
        assert torch.allclose(made, value, atol=ranks * 1e-3)
        assert torch.equal(sum([made] * ranks) / ranks, made)
        assert torch.equal(sum([made / ranks] * ranks), made)
    mean = sum(given) / ranks
    assert torch.equal(sum(value / ranks for value in reversed(given)), mean)
    assert torch.equal(sum(given) * (1 / ranks), mean)
