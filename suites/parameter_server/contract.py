"""The contract ``parameter-server``.

The module ``arena`` describes the arguments of a subject's ``build``, and the methods of its server.
"""

from __future__ import annotations

import pytest
from everyrank.suites.engine.contract import Contract
from everyrank.suites.parameter_server.arena import BLOCKS, open_arena

CONTRACT = Contract(
    "parameter-server",
    open_arena,
    marks=(pytest.mark.rpc(num_worker_threads=4, rpc_timeout=20),),
    choices=(BLOCKS,),
    capabilities="everyrank.suites.parameter_server.capabilities:CAPABILITIES",
    law_modules=(
        "everyrank.suites.parameter_server.laws.training",
        "everyrank.suites.parameter_server.laws.concurrency",
        "everyrank.suites.parameter_server.laws.errors",
        "everyrank.suites.parameter_server.laws.overlap",
        "everyrank.suites.parameter_server.laws.crossings",
    ),
    plainest="everyrank.suites.parameter_server.laws.training:plainest",
    exemplar="everyrank.suites.parameter_server.subjects:EXEMPLAR",
    nothing="everyrank.suites.parameter_server.subjects:NOTHING",
    rogues="everyrank.fixtures.rogues.parameter_server:ROGUES",
    player="everyrank.suites.parameter_server.player:ServerPlayer",
)
