"""The whole contract ``parameter-server``: importing this module registers every law.

What a subject's ``build`` is called with, and what its server has: see ``arena``.
"""

from __future__ import annotations

from everyrank.suites.parameter_server.laws import concurrency, errors, overlap, training

CONTRACT = training.CONTRACT

assert errors.CONTRACT is concurrency.CONTRACT is overlap.CONTRACT is CONTRACT
