"""The whole contract ``rpc-optimizer``: importing this module registers every law.

A subject is ``build(optimizer_class, rrefs, *arguments, **keywords)``, where ``rrefs`` are RRefs of parameters on
other workers and on this one. The returned object has ``step(context_id)``, which applies the gradients of that
distributed autograd context on all owners, and returns when they are done.

Other features of an optimizer (schedulers, ``param_groups``, step hooks, ``defaults``, ``copy.deepcopy``, ``repr``,
``state_dict`` and ``load_state_dict``, a closure given to ``step`` after the context or as ``closure``) work as with
torch.optim, or raise.
"""

from __future__ import annotations

from everyrank.suites.rpc_optimizer.laws import arguments, concurrency, dead_owner, errors, surface, training

CONTRACT = training.CONTRACT

assert surface.CONTRACT is CONTRACT
assert all(part.CONTRACT is CONTRACT for part in (arguments, errors, concurrency, dead_owner))
