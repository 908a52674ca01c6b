"""The whole contract ``replicate``: importing this module registers every law.

A subject is ``build(module, **options)``, which returns the module or a wrapper of it. Laws use what it returns, and
know parameters by the names that they had before: the kit finds the module inside of a wrapper among its submodules,
itself or a copy (see `wrappers.py`). A law passes an option only where it is about that option:

- ``ignored_modules``, ``device_id`` and ``broadcast_buffers``, as torch's composable ``replicate`` has them. A
  subject without one of these declares that as lacking.
- DDP's ``bucket_cap_mb``, ``gradient_as_bucket_view``, ``static_graph`` and ``find_unused_parameters`` are offered.
  A subject that has no use for one raises the TypeError that any function raises, which names the option; the case
  is not applicable then, and ``unused`` does without.

Ranks talk over the default process group, or over groups that ``build`` makes. For laws about ranks that fail or are
done the default group is one of the case's own, whose operations end after some seconds.

What is returned has ``set_requires_gradient_sync(on)`` or DDP's ``no_sync()``, and, where ranks may have different
numbers of batches, ``join()``. A subject that leaves each rank its own buffers declares ``local-buffers``.
"""

from __future__ import annotations

from everyrank.suites.replicate import laws, laws_of_errors, laws_of_modules

CONTRACT = laws.CONTRACT

assert laws_of_errors.CONTRACT is laws_of_modules.CONTRACT is CONTRACT
