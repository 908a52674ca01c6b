"""What a run file says of the kit's cases: which they are, how far they are off, what was declared."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from typing import Any

import pytest

from tests.inner import Inner, Project
from tests.run_files import RunFile, read

_SUBJECTS = """
    import os
    import pytest, torch
    from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
    from everyrank.suites import Lack, Subject, conformance
    from everyrank.suites.compare.comparison import Comparison, Tolerance

    class Nothing:
        def __init__(self, *args, **kwargs): pass
        def step(self, context_id): pass

    class Refuses(RpcOptimizer):
        def __init__(self, optimizer, parameters, **kwargs):
            if kwargs.get("momentum"):
                raise NotImplementedError("no momentum")
            super().__init__(optimizer, parameters, **kwargs)

    def leave(*args, **kwargs):
        os._exit(3)

    LACKS = {"state.kept[ws2]": Lack(NotImplementedError, "momentum is not done yet")}
    FINE = Subject("fine", contract="rpc-optimizer", build=RpcOptimizer)
    NOTHING = Subject("nothing", contract="rpc-optimizer", build=Nothing)
    LEDGER = Subject("ledger", contract="rpc-optimizer", build=Nothing, known="known.toml")
    CRASHES = Subject("crashes", contract="rpc-optimizer", build=leave, known="crash.toml")
    REFUSES = Subject("refuses", contract="rpc-optimizer", build=Refuses, lacks=LACKS)

    @conformance(FINE)
    def test_fine(case): case.run()

    @conformance(NOTHING)
    def test_nothing(case): case.run()

    @conformance(LEDGER)
    def test_ledger(case): case.run()

    @conformance(CRASHES)
    def test_crashes(case): case.run()

    @conformance(REFUSES)
    def test_refuses(case): case.run()

    @pytest.mark.world(3)
    def test_close(world):
        comparison = Comparison(Tolerance(relative=0.5))
        for step in (1, 2, 3):
            off = 0.01 * step * (world.rank == 1) + 0.05 * (world.rank == 2 and step == 1)
            comparison.step(step, {"w": torch.ones(2) + off}, {"w": torch.ones(2)})

    @pytest.mark.world(2)
    def test_endlessly_far(world):
        Comparison(Tolerance(relative=0.5)).step(1, {"w": torch.full((2,), torch.inf)}, {"w": torch.ones(2)})
"""

_KNOWN = """
    [[known]]
    case = "state.kept[ws2]"
    kind = "{kind}"
    issue = "https://example.org/12"
    note = "does not move"
"""

_CASE = "[rpc-optimizer/state.kept[ws2]]"


@pytest.fixture(scope="module")
def run(module_project: Project) -> tuple[Inner, RunFile]:
    project = module_project
    project.write("known.toml", _KNOWN.format(kind="fail"))
    project.write("crash.toml", _KNOWN.format(kind="crash"))
    project.write("test_inner.py", _SUBJECTS)
    inner = project.run("--law=state.kept", "-W", "ignore", "--run-file=run.jsonl", "--junitxml=junit.xml", "-n", "1")
    return inner, read(project.folder / "run.jsonl")


def _case(run: tuple[Inner, RunFile], name: str) -> dict[str, Any]:
    return run[1][f"test_{name}{_CASE}"]


def test_a_case_has_its_subject_contract_and_law(run: tuple[Inner, RunFile]) -> None:
    case = _case(run, "fine")
    fields = {name: case.get(name) for name in ("outcome", "subject", "contract", "law", "case")}
    assert fields == {
        "outcome": "pass", "subject": "fine", "contract": "rpc-optimizer", "law": "state.kept",
        "case": "rpc-optimizer/state.kept[ws2]",
    }  # fmt: skip


def test_a_case_that_agrees_bit_for_bit_has_no_error_and_no_plot(run: tuple[Inner, RunFile]) -> None:
    case = _case(run, "fine")
    assert (case["error"]["ulps"], case["error"]["absolute"], case["error"]["relative"]) == (0, 0, 0)
    assert "steps" not in case


def test_a_failing_case_has_its_largest_error_and_that_of_each_step(run: tuple[Inner, RunFile]) -> None:
    case = _case(run, "nothing")
    assert case["outcome"] == "fail"
    assert case["message"].startswith("step 1, parameter ")
    error, steps = case["error"], case["steps"]
    assert error["allowed"] == {"relative": 0.0, "ulps": 0.0}  # bit for bit
    assert error["name"].startswith("parameter ")
    assert error["relative"] == max(step["relative"] for step in steps) > 0
    assert error["step"] in [step["step"] for step in steps if step["relative"] == error["relative"]]
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))


def test_a_known_deviation_has_its_ledger_entry(run: tuple[Inner, RunFile]) -> None:
    case = _case(run, "ledger")
    assert case["outcome"] == "known"
    assert case["ledger"] == {
        "kind": "fail", "issue": "https://example.org/12", "note": "does not move", "file": "known.toml",
    }  # fmt: skip
    assert case["message"].startswith("known: does not move (https://example.org/12): step 1")


def test_a_known_crash_has_its_ledger_entry_although_no_rank_survived(run: tuple[Inner, RunFile]) -> None:
    case = _case(run, "crashes")
    assert (case["outcome"], case["rule"], case["ledger"]["kind"]) == ("known", "lost", "crash")
    assert case["subject"] == "crashes"


def test_a_lack_gives_its_reason(run: tuple[Inner, RunFile]) -> None:
    case = _case(run, "refuses")
    assert (case["outcome"], case["lack"]) == ("unsupported", "momentum is not done yet")


def test_the_header_names_each_subject_and_its_ledger(run: tuple[Inner, RunFile]) -> None:
    assert run[1].header["subjects"] == {
        "fine": "", "nothing": "", "ledger": "known.toml", "crashes": "crash.toml", "refuses": "",
    }  # fmt: skip


def test_the_largest_error_is_that_of_all_ranks(run: tuple[Inner, RunFile]) -> None:
    case = run[1]["test_close"]
    error = case["error"]
    assert error["allowed"] == {"relative": 0.5, "ulps": 0.0}
    assert case["outcome"] == "pass"
    assert (error["rank"], error["step"], error["name"]) == (2, 1, "w")
    assert error["relative"] == pytest.approx(0.05, rel=1e-4)
    assert [step["relative"] for step in case["steps"]] == pytest.approx([0.05, 0.02, 0.03], rel=1e-4)


def test_an_endless_error_is_a_number(run: tuple[Inner, RunFile]) -> None:
    assert run[1]["test_endlessly_far"]["error"]["absolute"] > 1e300


def test_cases_behind_a_broken_adapter_are_not_run_and_say_whose_they_are(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        from everyrank.suites import Subject, conformance

        NO_STEP = Subject("no-step", contract="rpc-optimizer", build=lambda *args, **kwargs: 42)

        @conformance(NO_STEP)
        def test_no_step(case): case.run()
        """,
    )
    project.run("--law=none.position", "--optimizer=SGD", "-W", "ignore", "--run-file=run.jsonl")
    first, *rest = read(project.folder / "run.jsonl").cases
    assert first["outcome"] == "error"
    assert rest
    assert {(case["outcome"], case["subject"], case["law"]) for case in rest} == {
        ("not-run", "no-step", "none.position")
    }
    assert {case["message"] for case in rest} == {f"not run: see {first['id']}"}


def test_junit_has_subject_law_and_optimizer_as_properties(run: tuple[Inner, RunFile]) -> None:
    tree = xml.parse(run[0].folder / "junit.xml")
    (found,) = [element for element in tree.iter("testcase") if element.get("name") == f"test_nothing{_CASE}"]
    properties = {element.get("name"): element.get("value") for element in found.iter("property")}
    assert (properties["subject"], properties["law"], properties["outcome"]) == ("nothing", "state.kept", "fail")
    assert "optimizer" in properties


def test_a_case_lists_what_its_law_let_the_subject_refuse_and_on_which_ranks_if_not_on_all(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import os
        from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
        from everyrank.fixtures.exemplars.sharded_optimizer import ShardedOptimizer
        from everyrank.suites import Subject, conformance

        class Differs(ShardedOptimizer):
            @property
            def defaults(self):
                if os.environ["RANK"] == "1":
                    return {"lr": 0.0625, "momentum": 0.9}
                raise AttributeError("not here")

            def __repr__(self):
                raise NotImplementedError("of rank 2" if os.environ["RANK"] == "2" else "of the others")

        @conformance(Subject("differs", contract="sharded-optimizer", build=Differs))
        def test_differs(case): case.run()

        @conformance(Subject("fine", contract="rpc-optimizer", build=RpcOptimizer))
        def test_fine(case): case.run()
        """,
    )
    chosen = "differs and (defaults or repr) or fine and (scheduler or repr)"
    project.run("--law=surface", "-k", chosen, "--run-file=run.jsonl")
    run_file = read(project.folder / "run.jsonl")
    assert set(run_file.outcomes.values()) == {"pass"}
    assert {case["case"]: case.get("refused") for case in run_file.cases} == {
        "rpc-optimizer/surface[scheduler-ws2]": {"scheduler": "TypeError: RpcOptimizer is not an Optimizer"},
        "rpc-optimizer/surface[repr-ws2]": None,
        "sharded-optimizer/surface[defaults-ws3]": {
            "defaults": "on ranks 0,2: AttributeError: not here; on rank 1: not refused",
        },
        "sharded-optimizer/surface[repr-ws3]": {
            "repr": "on ranks 0,1: NotImplementedError: of the others; on rank 2: NotImplementedError: of rank 2",
        },
    }
