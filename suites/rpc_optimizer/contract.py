"""The whole contract: importing this module registers every law."""

from __future__ import annotations

from everyrank.suites.rpc_optimizer import laws, laws_of_errors

CONTRACT = laws.CONTRACT

assert laws_of_errors.CONTRACT is CONTRACT
