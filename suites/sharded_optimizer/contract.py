"""The whole contract ``sharded-optimizer``: importing this module registers every law.

A subject is ``build(optimizer_class, named_parameters, *arguments, **keywords)``, where ``named_parameters`` maps
names to tensors, some whole and some a ShardedTensor. What it returns has

- ``step(closure=None)``, ``zero_grad(set_to_none=True)``, ``state_dict()`` and ``load_state_dict(state)``, where
  the state is of whatever form the subject likes: each rank gives a ``copy.deepcopy`` of what it got to a fresh
  subject over the same names, which may come in another order within their groups;
- ``add_param_group(group)``, where ``group["params"]`` maps names to tensors as well;
- ``clip_grad_norm_(max_norm, norm_type=2.0)``, which returns the norm.

Where it has ``param_groups``, an option that is set there counts from the next step on, as with torch.optim. What
else it has of an optimizer's (schedulers, step hooks, ``defaults``, ``copy.deepcopy``, ``repr``) works as well, or
raises.

Two tools for modules stand beside it, as attributes of ``build``, which is most simply a class:

- ``named_parameters(module, prefix="", recurse=True)`` yields names and parameters, whole or sharded;
- ``shard_parameter(module, name, spec)`` cuts the parameter of that (dotted) name in place, by a
  ``ChunkShardingSpec`` of one chunk a rank; where there are fewer rows than chunks, the last ranks have none.

A subject without one of these, ``step`` apart, declares a lack with AttributeError for the laws that need it.

A subclass of an optimizer of torch.optim treats a tensor as its base does: element by element, or as a whole.
``parity.subclass``, ``parity.whole-tensor[*-subclass-*]``, ``errors.rank[step-*]`` and ``errors.rank[after-step-*]``
use classes that torch does not have; a subject that refuses these, or those that look at the whole tensor, declares
a lack with NotImplementedError.

All run on every rank of the default group. An error on one rank is raised on every rank; its text holds ``rank`` with
the number, and the text of its cause (the name of its class, where it has no text); between the two it names no other
rank but the one that hears of it. A closure returns the loss of the whole model, the same on all ranks. A subject
that leaves the gradients of whole parameters to its caller declares ``caller-syncs-whole``.
"""

from __future__ import annotations

from everyrank.suites.sharded_optimizer import laws, laws_of_errors, laws_of_models, laws_of_surface, laws_of_tables

CONTRACT = laws.CONTRACT

assert laws_of_models.CONTRACT is CONTRACT
assert laws_of_errors.CONTRACT is CONTRACT
assert laws_of_tables.CONTRACT is CONTRACT
assert laws_of_surface.CONTRACT is CONTRACT
