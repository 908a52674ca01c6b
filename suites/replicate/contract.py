"""The whole contract ``replicate``: importing this module registers every law.

A subject is ``build(module, **options)``, which returns the module, wrapped or in place. The options are those of
torch's composable ``replicate``: ``ignored_modules``, ``device_id``, ``process_group``, ``bucket_cap_mb``,
``gradient_as_bucket_view``, ``static_graph``, ``broadcast_buffers`` and so on; a law passes only what it is about.
The module has ``set_requires_gradient_sync(on)`` or DDP's ``no_sync()``, and, where ranks may have different numbers
of batches, ``join()``. A subject that leaves each rank its own buffers declares ``local-buffers``.
"""

from __future__ import annotations

from everyrank.suites.replicate import laws, laws_of_errors, laws_of_modules

CONTRACT = laws.CONTRACT

assert laws_of_errors.CONTRACT is laws_of_modules.CONTRACT is CONTRACT
