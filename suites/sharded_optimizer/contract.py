"""The contract ``sharded-optimizer``.

A subject is ``build(optimizer_class, named_parameters, *arguments, **keywords)``, where ``named_parameters`` maps
names to tensors, some whole and some a ShardedTensor. The returned object has

- ``step(closure=None)``, ``zero_grad(set_to_none=True)``, ``state_dict()`` and ``load_state_dict(state)``. The
  state may have any form: each rank passes a ``copy.deepcopy`` of its state to a fresh subject over the same names,
  which may be in another order within their groups;
- ``add_param_group(group)``, where ``group["params"]`` maps names to tensors as well;
- ``clip_grad_norm_(max_norm, norm_type=2.0)``, which does what ``torch.nn.utils.clip_grad_norm_`` does to the whole
  tensors (it multiplies by ``max_norm / (norm + 1e-6)`` if that is less than 1), and returns the norm.

A step gives a whole parameter the mean of all ranks' gradients, also where these are equal, or lie in memory in other
ways. Laws give it numbers whose mean is exact, whether a subject adds or divides first. A subject that takes a
gradient which some ranks do not have for zeros there declares ``none-is-zero``, and is held to it.

A parameter with two names is stepped once, also if the second comes in a later group; a subject may refuse such a
group on all ranks. If one rank refuses a group, the error is raised on all. A subject that then keeps nothing of the
group on any rank declares ``drops-refused-groups``, and is held to it.

If it has ``param_groups``, an option that is set there counts from the next step on, as with torch.optim. Other
features of an optimizer (schedulers, step hooks, ``defaults``, ``copy.deepcopy``, ``repr``) work as well, or raise.

Two tools for modules are attributes of ``build``, which is most simply a class:

- ``named_parameters(module, prefix="", recurse=True)`` yields names and parameters, whole or sharded;
- ``shard_parameter(module, name, spec)`` cuts the parameter of that (dotted) name in place, by a
  ``ChunkShardingSpec`` of one chunk for each rank, as long as the spec has it; if there are fewer rows than chunks,
  the last ranks have none. Its metadata and shapes depend on no answer of another rank: ``large-world`` makes them
  for 512 and 1,024 ranks that do not exist, on torch's fake process group, which answers with made-up values.

A subject without one of these, except ``step``, declares its name as lacking: see ``capabilities.py``.

A subclass of an optimizer of torch.optim treats a tensor as its base does: element by element, or as a whole.
``parity.subclass``, ``parity.whole-tensor[*-subclass-*]``, ``errors.rank[step-*]`` and ``errors.rank[after-step-*]``
use classes that torch does not have; a subject that refuses these lacks ``own-classes``, and one that refuses classes
that need the whole tensor lacks ``whole-tensor``.

All of these run on every rank of the default group. An error on one rank is raised on every rank; a subject
that leaves it there, and lets no other rank wait for that, lacks ``shared-errors``. Its text contains
``rank`` with the number, and the text of its cause, or the name of its class if it has no text; between the two it
names no other rank except the one that raises it. If several ranks fail at once, each with a text of its own, each
rank's error names one of them at least, in this way. If a closure raises on some ranks when it is evaluated first, no
rank has stepped, and all can go on. A closure returns the loss of the whole model, the same on all ranks. A subject
that leaves the gradients of whole parameters to its caller declares ``caller-syncs-whole``.
"""

from __future__ import annotations

from everyrank.suites.engine.contract import Contract
from everyrank.suites.sharded_optimizer.arena import CALLER_SYNCS, DROPS_REFUSED, NONE_IS_ZERO, open_arena

CONTRACT = Contract(
    "sharded-optimizer",
    open_arena,
    fixtures=("process_group",),
    choices=(CALLER_SYNCS, NONE_IS_ZERO, DROPS_REFUSED),
    capabilities="everyrank.suites.sharded_optimizer.capabilities:CAPABILITIES",
    ledgers={"torch": "everyrank.suites.sharded_optimizer"},
    law_modules=(
        "everyrank.suites.sharded_optimizer.laws.training",
        "everyrank.suites.sharded_optimizer.laws.errors",
        "everyrank.suites.sharded_optimizer.laws.models",
        "everyrank.suites.sharded_optimizer.laws.surface",
        "everyrank.suites.sharded_optimizer.laws.tables",
        "everyrank.suites.sharded_optimizer.laws.large_world",
        "everyrank.suites.sharded_optimizer.laws.crossings",
    ),
    groups={
        "AVERAGED": "look at whole parameters, whose gradients are averaged over ranks",
    },
    plainest="everyrank.suites.sharded_optimizer.laws.training:plainest",
    exemplar="everyrank.suites.sharded_optimizer.subjects:EXEMPLAR",
    nothing="everyrank.suites.sharded_optimizer.subjects:NOTHING",
    rogues="everyrank.fixtures.rogues.sharded_optimizer:ROGUES",
    player="everyrank.suites.sharded_optimizer.player:ShardedPlayer",
)
