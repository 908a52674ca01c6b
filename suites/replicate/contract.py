"""The contract ``replicate``.

A subject is ``build(module, **options)``, which returns the module or a wrapper of it. Laws use the returned module
and call parameters by the names that they had before: among the submodules of a wrapper the kit finds the module that
it gave, or a copy of it (see `wrappers.py`). The state dict of what ``build`` returns has the keys of the module that
was given, in their order, and loads one with these keys: a wrapper whose keys have a prefix, as DDP's begin with
``module.``, declares ``local-keys`` as lacking. A law passes an option only if the law is about that option:

- ``ignored_modules``, ``device_id`` and ``broadcast_buffers``, as torch's composable ``replicate`` has them. A
  subject without one of these declares its name as lacking.
- ``bucket_cap_mb``, ``gradient_as_bucket_view``, ``static_graph`` and ``find_unused_parameters``, as DDP has them. A
  subject that does not have one raises the TypeError that any function raises, which names the option. The case is
  not applicable then; the law ``unused`` builds without the option.

Ranks communicate over the default process group, or over groups that ``build`` makes. For laws about ranks that fail
or are done, the default group belongs to the case, and its operations end after some seconds.

The returned module has ``set_requires_gradient_sync(on)`` or DDP's ``no_sync()``, and, where ranks may have different
numbers of batches, ``join()``. When a rank fails or has no more batches, the others raise an error: if it, or its
cause, names that rank ("rank" and the number), the subject declares ``names-ranks``, and is held to it. A subject
that leaves each rank its own buffers declares ``local-buffers``.
"""

from __future__ import annotations

from everyrank.suites.arena.groups import NAMES_RANKS
from everyrank.suites.engine.contract import Contract
from everyrank.suites.replicate.arena import LOCAL_BUFFERS, Arena

CONTRACT = Contract(
    "replicate",
    Arena.opened,
    fixtures=("process_group",),
    choices=(LOCAL_BUFFERS, NAMES_RANKS),
    capabilities="everyrank.suites.replicate.capabilities:CAPABILITIES",
    ledgers={"torch": "everyrank.suites.replicate"},
    law_modules=(
        "everyrank.suites.replicate.laws.training",
        "everyrank.suites.replicate.laws.errors",
        "everyrank.suites.replicate.laws.modules",
        "everyrank.suites.replicate.laws.crossings",
    ),
    groups={
        "TRAINED": "train on a mean, with a point of three ranks",
    },
    plainest="everyrank.suites.replicate.laws.training:plainest",
    exemplar="everyrank.suites.replicate.subjects:EXEMPLAR",
    nothing="everyrank.suites.replicate.subjects:NOTHING",
    rogues="everyrank.fixtures.rogues.replicate:ROGUES",
    player="everyrank.suites.replicate.player:ReplicatePlayer",
)
