"""The contract ``parameter-server``.

A subject's ``build(module, trainers, optimizer, *, timeout, non_finite)`` makes a server that trains ``module``.
``optimizer(parameters)`` makes its optimizer, ``timeout`` is how many seconds a round may stay open, and
``non_finite`` is whether infinite and undefined gradients are accepted; a subject has defaults for both. The server's
``update_and_fetch(gradients, trainer)`` takes one gradient, or None, for each parameter of ``module``, and returns
a future of the new model (or of its parameters in order). It is called directly, and over an RRef to its door: a
method that returns a future is decorated with ``rpc.functions.async_execution``, and its errors reach a far trainer
if they are raised, there or in a ``then()`` (torch's RPC passes on what ``set_exception`` was given as an answer). A
subject whose server returns the new model itself, after the round, declares that it ``blocks``.

What is reported may share memory: one tensor stands for the gradients of two parameters, or of two trainers, or two
are views of one, and one may be expanded.

A trainer that reports again while it waits for its answer counts once. Its second call may get an error, or take the
place of its first, which then gets an error or the answer of the round: one of the two is answered.

A wrong gradient is refused with an error that names the fault: a wrong shape by the word shape, size or dimension, or
by a shape such as ``[6, 4]``; a wrong number of gradients by count, number, length, argument or gradients; a wrong
dtype by type, or a dtype's name; an infinite or undefined value, with ``non_finite=False``, by finite, nan or inf. A
number that stands in a sparse gradient several times is their sum.

An answer that is a module has all buffers of the model, also those that are in no state dict.

If the optimizer's step raises, all trainers of the round get an error (as in a round that has expired), and the next
round has nothing of it. What the optimizer's hooks do to ``module``, in place or in new memory, is in the answer.
A parameter that they freeze is one of which nobody has a gradient, until they thaw it.

A report may come while the round before is still under way. During the update it is counted in the next round, or
refused with an error, and then its trainer may report again when it has been answered; from a trainer that has been
answered it is taken.
"""

from __future__ import annotations

import pytest
from everyrank.suites.engine.contract import Contract
from everyrank.suites.parameter_server.arena import BLOCKS, open_arena

CONTRACT = Contract(
    "parameter-server",
    open_arena,
    marks=(pytest.mark.rpc(num_worker_threads=4, rpc_timeout=20),),
    choices=(BLOCKS,),
    capabilities="everyrank.suites.parameter_server.capabilities:CAPABILITIES",
    law_modules=(
        "everyrank.suites.parameter_server.laws.training",
        "everyrank.suites.parameter_server.laws.concurrency",
        "everyrank.suites.parameter_server.laws.errors",
        "everyrank.suites.parameter_server.laws.overlap",
        "everyrank.suites.parameter_server.laws.crossings",
    ),
    plainest="everyrank.suites.parameter_server.laws.training:plainest",
    exemplar="everyrank.suites.parameter_server.subjects:EXEMPLAR",
    nothing="everyrank.suites.parameter_server.subjects:NOTHING",
    rogues="everyrank.fixtures.rogues.parameter_server:ROGUES",
    player="everyrank.suites.parameter_server.player:ServerPlayer",
)
