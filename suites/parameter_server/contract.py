"""The whole contract ``parameter-server``: importing this module registers every law.

What a subject's ``build`` is called with, and what its server has: see ``arena``.
"""

from __future__ import annotations

from everyrank.suites.parameter_server import laws, laws_of_concurrency, laws_of_errors, laws_of_overlap

CONTRACT = laws.CONTRACT

assert laws_of_errors.CONTRACT is laws_of_concurrency.CONTRACT is laws_of_overlap.CONTRACT is CONTRACT
