"""State dicts and closures in the law ``surface`` of ``rpc-optimizer``: what works is no refusal, a fault is seen."""

from __future__ import annotations

from tests.inner import Project
from tests.run_files import read

_SUBJECTS = """
    from everyrank.fixtures.rogues.rpc_optimizer.surface import KeepsItsOwnOptions, Saves, TakesClosures
    from everyrank.suites import Subject, conformance

    class EvaluatesTwice(TakesClosures):
        def step(self, context_id, closure=None):
            if closure is not None:
                closure()
            return super().step(context_id, closure)

    class TakesClosuresAsContexts(TakesClosures):
        def step(self, context_id, closure=None):
            if not callable(context_id):
                return super().step(context_id, closure)

    @conformance(Subject("saves", contract="rpc-optimizer", build=Saves))
    def test_saves(case): case.run()

    @conformance(Subject("keeps", contract="rpc-optimizer", build=KeepsItsOwnOptions))
    def test_keeps(case): case.run()

    @conformance(Subject("takes", contract="rpc-optimizer", build=TakesClosures))
    def test_takes(case): case.run()

    @conformance(Subject("twice", contract="rpc-optimizer", build=EvaluatesTwice))
    def test_twice(case): case.run()

    @conformance(Subject("alone", contract="rpc-optimizer", build=TakesClosuresAsContexts))
    def test_alone(case): case.run()
    """


def _run(project: Project, points: str) -> dict[tuple[str, str], tuple[str, str, list[str]]]:
    """Return the outcome, the message and the refused parts of each case, by subject and point."""
    project.write("test_inner.py", _SUBJECTS)
    project.run("--law=surface", "-k", points, "--run-file=run.jsonl")
    return {
        (case["subject"], case["case"].partition("[")[2].removesuffix("-ws2]")): (
            case["outcome"],
            case.get("message", ""),
            list(case.get("refused", {})),
        )
        for case in read(project.folder / "run.jsonl").cases
    }


def test_a_state_dict_that_is_loaded_whole_passes_without_a_refusal(project: Project) -> None:
    found = _run(project, "state-dict and (saves or keeps or takes)")
    assert found["saves", "state-dict"] == ("pass", "", [])
    assert found["takes", "state-dict"] == ("pass", "", ["state-dict"])
    outcome, message, _ = found["keeps", "state-dict"]
    assert outcome == "fail"
    assert "step 2, parameter 0 on worker1: off by" in message


def test_a_closure_is_evaluated_once_or_refused(project: Project) -> None:
    found = _run(project, "closure and (takes or twice or alone)")
    for point in ("closure", "closure-by-name"):
        assert found["takes", point] == ("pass", "", [])
        outcome, message, _ = found["twice", point]
        assert outcome == "fail"
        assert "step took a closure and evaluated it 2 times, torch.optim does once" in message
    assert found["takes", "closure-alone"] == ("pass", "", ["closure-alone"])
    outcome, message, _ = found["alone", "closure-alone"]
    assert outcome == "fail"
    assert "step took a closure and evaluated it 0 times" in message
