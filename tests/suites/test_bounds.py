"""A subject that is approximate by design: within its bound its outcome is approximate, never a pass."""

from __future__ import annotations

import pytest

from tests.inner import Inner, Project

_SUBJECTS = """
    import torch
    import torch.distributed as dist
    from everyrank.fixtures.exemplars.replicate import replicate
    from everyrank.fixtures.exemplars.sharded_optimizer import ShardedOptimizer
    from everyrank.fixtures.exemplars.trainer import DataParallel
    from everyrank.suites import Bound, Lack, Subject, conformance

    OFF = 1e-9

    def rough(module, **options):
        module = replicate(module, **options)
        module.register_forward_hook(lambda module, given, output: output * (1 + OFF))
        return module

    class RoughOnRank1(ShardedOptimizer):
        def step(self, closure=None):
            loss = super().step(closure)
            if dist.get_rank() == 1:
                with torch.no_grad():
                    for part in self.parts:
                        for tensor, _ in part.find_pieces():
                            tensor.mul_(1 + OFF)
            return loss

    class Rounded(DataParallel):
        def __init__(self, model, *args, **kwargs):
            super().__init__(model, *args, **kwargs)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(parameter.float())

    def same(module, **options):
        module.set_requires_gradient_sync = lambda on: None
        return module

    WIDE, NARROW, LIMITLESS = Bound(1e-6, "rounds"), Bound(1e-12, "rounds"), Bound(1e6, "anything goes")
    LACKS = {"mean[plain-ws2]": Lack(NotImplementedError, "not exact")}

    def subject(name, build, **more):
        return Subject(name, contract="replicate", build=build, sizes=(2,), **more)

    @conformance(subject("wide", rough, bound=WIDE))
    def test_wide(case): case.run()

    @conformance(subject("narrow", rough, bound=NARROW))
    def test_narrow(case): case.run()

    @conformance(subject("unbound", rough))
    def test_unbound(case): case.run()

    @conformance(subject("exact", replicate, bound=WIDE))
    def test_exact(case): case.run()

    @conformance(subject("lacking", rough, bound=WIDE, lacks=LACKS))
    def test_lacking(case): case.run()

    @conformance(subject("nothing", same, bound=LIMITLESS))
    def test_nothing(case): case.run()

    @conformance(Subject("one", contract="sharded-optimizer", build=RoughOnRank1, sizes=(3,), bound=WIDE))
    def test_one_rank(case): case.run()

    @conformance(Subject("start", contract="trainer", build=Rounded, sizes=(2,), bound=WIDE))
    def test_start(case): case.run()

    @conformance(Subject("unbound-start", contract="trainer", build=Rounded, sizes=(2,)))
    def test_unbound_start(case): case.run()
"""
_MEAN = "[replicate/mean[plain-ws2]]"
_SHARD = "[sharded-optimizer/parity.shard[SGD-momentum-dim0-ws3]]"
_START = "[trainer/init.sync[built-frozen-ws2]]"


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    module_project.write("test_inner.py", _SUBJECTS)
    cases = "mean[plain-ws2] or parity.shard[SGD-momentum-dim0 or init.sync[built-frozen-ws2]"
    return module_project.run("-k", cases, "-W", "ignore")


@pytest.mark.parametrize(
    ("test", "outcome", "kind"),
    [
        (f"test_wide{_MEAN}", "passed", "approximate"),
        (f"test_narrow{_MEAN}", "failed", "fail"),
        (f"test_unbound{_MEAN}", "failed", "fail"),
        (f"test_exact{_MEAN}", "passed", "pass"),
        (f"test_lacking{_MEAN}", "failed", "stale"),
        (f"test_nothing{_MEAN}", "skipped", "not-applicable"),
        (f"test_one_rank{_SHARD}", "passed", "approximate"),
        (f"test_start{_START}", "passed", "approximate"),
        (f"test_unbound_start{_START}", "failed", "fail"),
    ],
)
def test_a_bound(inner: Inner, test: str, outcome: str, kind: str) -> None:
    result = inner[test]
    assert (result.outcome, result.properties["outcome"]) == (outcome, kind), result.text


def test_a_bound_wider_than_every_step_proves_nothing(inner: Inner) -> None:
    assert "no step moved the reference by more than the bound, 1e+06" in inner[f"test_nothing{_MEAN}"].text


def test_the_last_lines_count_it(inner: Inner) -> None:
    assert "3 approximate" in inner.out
