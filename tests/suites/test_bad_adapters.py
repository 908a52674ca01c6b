"""An adapter that is wrong is reported once, in a sentence, before any law, and nothing else is tried."""

from __future__ import annotations

import re

import pytest

from tests.inner import Inner, Project
from tests.run_files import read

_ADAPTERS = """
    import time
    import torch
    from everyrank.fixtures.exemplars.parameter_server import BatchUpdateParameterServer
    from everyrank.fixtures.exemplars.replicate import replicate
    from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
    from everyrank.fixtures.exemplars.sharded_optimizer import ShardedOptimizer
    from everyrank.suites import Lack, Subject, conformance

    def raises(*args, **kwargs):
        raise KeyError("no such thing")

    def takes_nothing():
        pass

    def hangs(*args, **kwargs):
        time.sleep(1000)

    class NoStep(RpcOptimizer):
        def step(self):
            pass

    def at_size_2_only(module, **options):
        if torch.distributed.get_world_size() != 2:
            raise RuntimeError("made for two")
        return replicate(module, **options)

    class WithoutSgd(RpcOptimizer):
        def __init__(self, optimizer, parameters, *args, **kwargs):
            if optimizer is torch.optim.SGD:
                raise NotImplementedError("no SGD")
            super().__init__(optimizer, parameters, *args, **kwargs)

    def subject(name, contract, build, **more):
        return Subject(name, contract=contract, build=build, **more)

    SUBJECTS = [
        subject("raises", "sharded-optimizer", raises, sizes=(3,)),
        subject("takes-nothing", "replicate", takes_nothing, sizes=(2,)),
        subject("no-context", "rpc-optimizer", NoStep),
        subject("meta-server", "parameter-server", lambda model, *args, **kwargs:
                BatchUpdateParameterServer(model.to("meta"), *args, **kwargs)),
        subject("meta-module", "replicate", lambda module, **options:
                replicate(module.to("meta"), **options), sizes=(2,)),
    ]
"""

_ONE = """
    from adapters import SUBJECTS
    from everyrank.suites import conformance

    @conformance(SUBJECTS[{number}])
    def test_it(case): case.run()
"""


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    module_project.write("adapters.py", _ADAPTERS)
    for number in range(5):
        module_project.write(f"test_{number}.py", _ONE.format(number=number))
    # More than five cases of each.
    return module_project.run("-W", "ignore", "-k", "state or frozen or none or unused or tied or wait")


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (0, "build, with SGD over two parameters, raised KeyError: 'no such thing'"),
        (
            1,
            "build, of a small model, raised TypeError: takes_nothing() takes 0 positional arguments but 1 was given",
        ),
        (2, "a step of SGD raised TypeError: NoStep.step() takes 1 positional argument but 2 were given"),
        (3, "a report of the only trainer was answered with RuntimeError: "),
        (4, "first.weight is on meta now, not on cpu, where the kit had put it"),
    ],
)
def test_it_is_reported_once_and_the_rest_is_not_run(inner: Inner, number: int, reason: str) -> None:
    mine = {nodeid: result for nodeid, result in inner.tests.items() if nodeid.startswith(f"test_{number}.py")}
    bad = [result for result in mine.values() if result.outcome != "skipped"]
    assert len(mine) > 5
    assert len(bad) == 1, [result.nodeid for result in bad]
    assert f"not even the plainest use works: {reason}" in bad[0].text
    assert not re.search(r"everyrank/[\w/]+\.py", bad[0].text), "a traceback of ours"
    assert bad[0].properties["outcome"] == "error"
    assert {result.properties["outcome"] for result in mine.values() if result is not bad[0]} == {"not-run"}


_HANGS = """
    from adapters import Subject, conformance, hangs
    from everyrank.suites.collect import items

    items.CASE_TIMEOUT = 2.0

    @conformance(Subject("hangs", contract="replicate", build=hangs, sizes=(2,)))
    def test_hangs(case): case.run()
"""

_MORE = """
    from adapters import Lack, Subject, WithoutSgd, at_size_2_only, conformance

    LACK = Lack(NotImplementedError, "no SGD")

    @conformance(Subject("two-only", contract="replicate", build=at_size_2_only, sizes=(2, 3)))
    def test_two_only(case): case.run()

    @conformance(Subject("without", contract="rpc-optimizer", build=WithoutSgd, lacks={"*[SGD-*": LACK}))
    def test_without(case): case.run()
"""


def test_one_that_hangs_is_waited_for_once(project: Project) -> None:
    project.write("adapters.py", _ADAPTERS)
    project.write("test_inner.py", _HANGS)
    inner = project.run("-W", "ignore", "-k", "frozen or unused")
    assert [result.properties["outcome"] for result in inner.tests.values()].count("timeout") == 1
    assert {result.properties["outcome"] for result in inner.tests.values()} == {"timeout", "not-run"}


def test_what_works_somewhere_is_judged_there(project: Project) -> None:
    """What fails with three ranks is not tried with three again; who lacks plain SGD is not asked for it first."""
    project.write("adapters.py", _ADAPTERS)
    project.write("test_inner.py", _MORE)
    inner = project.run(
        "-W",
        "ignore",
        "-k",
        "(test_two_only and (tied[ws or accumulate[parts)) or (test_without and one-step and (SGD or Rprop))",
    )
    ends = {
        re.split(r"[\[/]", nodeid, maxsplit=2)[-1]: result.properties["outcome"]
        for nodeid, result in inner.tests.items()
    }
    of_two = {case: ends.pop(case) for case in list(ends) if case.startswith(("tied", "accumulate"))}
    assert {end for case, end in of_two.items() if "ws2" in case} == {"pass"}
    with_three = [end for case, end in of_two.items() if "ws3" in case]
    assert with_three.count("error") == 1
    assert set(with_three) == {"error", "not-run"}
    assert {end for case, end in ends.items() if "[SGD-" in case} == {"unsupported"}
    assert {end for case, end in ends.items() if "[SGD-" not in case} == {"pass"}


_DIES = """
    import os
    from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
    from everyrank.suites import Subject, conformance

    def always(*args, **kwargs):
        os._exit(3)

    def on_momentum(optimizer, parameters, *args, **kwargs):
        if kwargs.get("momentum"):
            os._exit(3)
        return RpcOptimizer(optimizer, parameters, *args, **kwargs)

    @conformance(Subject("always", contract="rpc-optimizer", build=always))
    def test_always(case): case.run()

    @conformance(Subject("on-momentum", contract="rpc-optimizer", build=on_momentum))
    def test_on_momentum(case): case.run()
"""


def test_an_adapter_that_dies_at_once_is_reported_once_and_one_that_dies_of_one_law_each_time(
    project: Project,
) -> None:
    project.write("test_inner.py", _DIES)
    # In this order: the first case of all is one that dies.
    inner = project.run("-W", "ignore", "-k", "ws2 and (state.kept or clean)")
    always = [result.properties["outcome"] for nodeid, result in inner.tests.items() if "test_always" in nodeid]
    assert always.count("crash") == 1
    assert set(always) == {"crash", "not-run"}
    other = {nodeid: result.properties["outcome"] for nodeid, result in inner.tests.items() if "test_on_m" in nodeid}
    assert next(iter(other)).endswith("state.kept[ws2]]")
    assert list(other.values()) == ["crash", "pass", "pass"]


@pytest.mark.parametrize("name", ["the default dtype", "the warnings filters"])
def test_what_a_subject_always_sets_is_seen_though_the_plainest_use_has_set_it_before(
    project: Project, name: str
) -> None:
    project.write(
        "test_inner.py",
        f"""
        import torch
        from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
        from everyrank.fixtures.rogues.rpc_optimizer.errors import SilencesWarnings
        from everyrank.suites import Subject, conformance

        class SetsTheDtype(RpcOptimizer):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                torch.set_default_dtype(torch.float64)

        SUBJECTS = {{"the default dtype": SetsTheDtype, "the warnings filters": SilencesWarnings}}

        @conformance(Subject("sets", contract="rpc-optimizer", build=SUBJECTS[{name!r}]))
        def test_sets(case): case.run()
        """,
    )
    project.run("--law=clean.globals", "--run-file=run.jsonl")  # this case is the first of its process
    (case,) = read(project.folder / "run.jsonl").cases
    assert (case["outcome"], case["message"]) == ("fail", f"on worker0, the optimizer changed {name}")


_DIES_IN_A_CROSSING = """
    import os
    import torch.distributed as dist
    from everyrank.fixtures.exemplars.trainer import DataParallel
    from everyrank.suites import Subject, conformance

    class Dies(DataParallel):
        def load_state_dict(self, state):
            if dist.get_rank() == 1:
                os._exit(3)
            super().load_state_dict(state)

    @conformance(Subject("dies", contract="trainer", build=Dies, sizes=(2,)))
    def test_it(case): case.run()
"""


def test_a_rank_that_dies_in_a_crossing_is_no_fault_of_the_adapter_and_the_others_are_tried(project: Project) -> None:
    project.write("test_inner.py", _DIES_IN_A_CROSSING)
    chosen = "crossings[SGD-tied-unused-zero-064-ws2 or parity.schedule[ws2"
    results = project.run("--profile=full", "-p", "no:randomly", "-W", "ignore", "-k", chosen, "test_inner.py").tests
    by_law = {result.properties["law"]: result for result in results.values()}
    assert "adapter is at fault" not in by_law["crossings"].text
    assert by_law["crossings"].properties["outcome"] == "crash"
    assert by_law["parity.schedule"].properties["outcome"] == "pass"
