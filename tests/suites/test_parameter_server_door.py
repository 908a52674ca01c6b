"""Reports from other workers come to a server one at a time, but where a law is about two at the same instant."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from everyrank.suites.parameter_server.door import AsynchronousDoor, Door, door_of
from everyrank.suites.parameter_server.example import BatchUpdateParameterServer

from tests.engines import one_run
from tests.inner import Inner

SOURCE = """
    import threading

    import pytest
    import torch
    import torch.distributed.rpc as rpc
    from everyrank.fixtures.exemplars.parameter_server import BatchUpdateParameterServer
    from everyrank.fixtures.models import MODELS
    from everyrank.suites import Subject, conformance
    from everyrank.suites.engine.contract import contract
    from everyrank.suites.parameter_server import example, points

    NEVER = threading.Event()


    class Racing(example.BatchUpdateParameterServer):
        # Between looking at a sum and adding to it, another has the time to come.
        @rpc.functions.async_execution
        def update_and_fetch(self, gradients, trainer):
            for parameter, gradient in zip(self.model.parameters(), gradients):
                total = gradient if parameter.grad is None else parameter.grad + gradient
                NEVER.wait(0.001)
                parameter.grad = total
            return super().update_and_fetch([torch.zeros_like(gradient) for gradient in gradients], trainer)


    RACING = Subject("mine.Racing", contract="parameter-server", build=Racing)
    EXEMPLAR = Subject("mine", contract="parameter-server", build=BatchUpdateParameterServer)

    @conformance(RACING)
    def test_racing(case):
        case.run()

    @pytest.mark.world(4)
    @pytest.mark.rpc(num_worker_threads=4)
    def test_in_order(rpc_agent, world):
        point = points.plain(trainers=3, far=True)
        with contract("parameter-server").arena(EXEMPLAR, point) as arena:
            if arena is None:
                return
            served = arena.serve(MODELS["plain"].build(3), 3, points.sgd())
            for number in range(20):
                part = [torch.ones_like(each) for each in served.twins]
                reports = []
                for trainer in (2, 0):
                    reports.append(served.report(trainer, part))
                    assert list(served.server.round.reports) == [report.trainer for report in reports], number
                reports.append(served.report(1, part))
                assert [report.answer() is not None for report in reports] == [True] * 3
"""


racing = one_run(SOURCE, "-k", "in_order or lost-update[rpc-n3 or training-rpc-n3")


def test_a_law_that_is_not_about_reports_that_meet_is_kept_by_who_minds_them_only(racing: Inner) -> None:
    assert racing["test_racing[parameter-server/parity.rounds[training-rpc-n3-ws4]]"].outcome == "passed"


def test_the_law_that_is_about_them_is_not(racing: Inner) -> None:
    assert racing["test_racing[parameter-server/lost-update[rpc-n3-ws4]]"].outcome == "failed"


def test_a_report_from_afar_is_there_before_the_next_is_made(racing: Inner) -> None:
    assert racing["test_in_order"].outcome == "passed"


class Meeting:
    """A server that records whether two reports met in it."""

    def __init__(self, patience: float = 0.2) -> None:
        self.met = False
        self.both, self.patience = threading.Barrier(2), patience

    def update_and_fetch(self, gradients: Any, trainer: int) -> None:
        try:
            self.both.wait(self.patience)
            self.met = True
        except threading.BrokenBarrierError:
            pass


@pytest.mark.parametrize("blocks", [False, True])
def test_reports_meet_in_a_server_that_blocks_only(blocks: bool) -> None:
    server = Meeting(patience=30 if blocks else 0.2)  # a thread that is late to a meeting shall not look refused
    door = door_of(server, blocks)
    taken = threading.Event()
    door.awaits(1, taken)
    trainers = [threading.Thread(target=door.update_and_fetch, args=([], trainer)) for trainer in range(2)]
    for thread in trainers:
        thread.start()
    for thread in trainers:
        thread.join()
    assert server.met is blocks
    assert taken.is_set()


class Refusing:
    def update_and_fetch(self, gradients: Any, trainer: int) -> None:
        raise ValueError("no")


def test_a_refused_report_has_been_taken() -> None:
    door, taken = door_of(Refusing(), blocks=False), threading.Event()
    door.awaits(0, taken)
    with pytest.raises(ValueError, match="no"):
        door.update_and_fetch([], 0)
    assert taken.is_set()


def test_a_door_answers_over_rpc_as_its_server_does() -> None:
    example = BatchUpdateParameterServer(torch.nn.Linear(1, 1), 1, torch.optim.SGD)
    assert type(door_of(example, blocks=False)) is AsynchronousDoor
    assert type(door_of(Meeting(), blocks=False)) is Door
