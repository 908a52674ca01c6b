"""The whole contract: importing this module registers every law."""

from __future__ import annotations

from everyrank.suites.rpc_optimizer import dead_owner, laws, laws_at_once, laws_of_errors

CONTRACT = laws.CONTRACT

assert all(part.CONTRACT is CONTRACT for part in (laws_of_errors, laws_at_once, dead_owner))
