"""The contract ``rpc-optimizer``.

A subject is ``build(optimizer_class, rrefs, *arguments, **keywords)``, where ``rrefs`` are RRefs of parameters on
other workers and on this one. The returned object has ``step(context_id)``, which applies the gradients of that
distributed autograd context on all owners, and returns or raises only when all of them are done. Steps on one owner
come one after the other, also those of several optimizers of several clients. If one owner fails, the error has its
type and its text, with the name of its worker as ``init_rpc`` was given it (torch's RPC puts it there). If several
fail, one error of any type has the text of each: all behind the names of their workers, or all before them.
torch's RPC changes letters outside ASCII: a subject whose errors keep them declares ``keeps-letters``, and is held to
it.

Other features of an optimizer (schedulers, ``param_groups``, step hooks, ``defaults``, ``copy.deepcopy``, ``repr``,
``state_dict`` and ``load_state_dict``, a closure given to ``step`` after the context or as ``closure``) work as with
torch.optim, or raise.
"""

from __future__ import annotations

import pytest
from everyrank.suites.engine.contract import Contract
from everyrank.suites.rpc_optimizer.arena import KEEPS_LETTERS, open_arena

CONTRACT = Contract(
    "rpc-optimizer",
    open_arena,
    fixtures=("warm_rpc_agent",),
    choices=(KEEPS_LETTERS,),
    marks=(pytest.mark.rpc(num_worker_threads=4, rpc_timeout=20),),
    capabilities="everyrank.suites.rpc_optimizer.capabilities:CAPABILITIES",
    ledgers={"torch": "everyrank.suites.rpc_optimizer"},
    law_modules=(
        "everyrank.suites.rpc_optimizer.laws.training",
        "everyrank.suites.rpc_optimizer.laws.arguments",
        "everyrank.suites.rpc_optimizer.laws.concurrency",
        "everyrank.suites.rpc_optimizer.laws.dead_owner",
        "everyrank.suites.rpc_optimizer.laws.errors",
        "everyrank.suites.rpc_optimizer.laws.surface",
        "everyrank.suites.rpc_optimizer.laws.crossings",
    ),
    groups={
        "STEPS": "compare several steps with the reference",
        "EVERY_OWNER": "look at the parameters of every owner of three, one of which is the caller",
        "CONCURRENT": "let several steps run at the same time",
    },
    plainest="everyrank.suites.rpc_optimizer.laws.training:plainest",
    exemplar="everyrank.suites.rpc_optimizer.subjects:EXEMPLAR",
    nothing="everyrank.suites.rpc_optimizer.subjects:NOTHING",
    rogues="everyrank.fixtures.rogues.rpc_optimizer:ROGUES",
    player="everyrank.suites.rpc_optimizer.player:RpcPlayer",
)
