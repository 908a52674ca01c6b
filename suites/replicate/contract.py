"""The whole contract: importing this module registers every law."""

from __future__ import annotations

from everyrank.suites.replicate import laws, laws_of_errors, laws_of_modules

CONTRACT = laws.CONTRACT

assert laws_of_errors.CONTRACT is laws_of_modules.CONTRACT is CONTRACT
