"""The contract ``trainer``: anything that trains a model on many ranks.

A subject is ``build(model, optimizer_class, *args, **kwargs)``, on every rank. It returns an object with

- ``step(*batches)``: train for one step on this rank's microbatches. ``batch.loss(model)`` is the loss of one: over
  all microbatches of a step these losses add up to the loss of the rank, and the step follows the mean over ranks,
  which need not have as many. A subject with a schedule of its own uses ``batch.inputs`` and
  ``batch.criterion(outputs)`` instead; ``batch.rows()`` is a microbatch for each row. If ``step`` returns something
  other than None, that is the mean loss of all ranks.
- ``parameters()``: the full parameters by the names that they have in the model, on every rank. It may communicate.

and, where it has them,

- ``param_groups``, in which an option that is set counts from the next step on; ``optimizer``, an optimizer to which
  a scheduler of torch can be attached;
- ``state_dict()`` and ``load_state_dict(state)``, of the whole training, in any form that ``copy.deepcopy`` copies.
  What is done later to the parameters and buffers in a state that was loaded changes nothing, as with
  ``Module.load_state_dict``. What an optimizer keeps is not asked about: ``Optimizer.load_state_dict`` shares it;
- ``add_param_group(group)``;
- ``loader(batches)``, which iterates over an epoch of this rank's batches, each for one ``step``. The state has its
  position: the first call after a load iterates over what was left of the epoch: nothing after its last batch;
- ``owns()``, by the name of each parameter a pair: the boxes of it that this rank owns, each its offsets and its
  sizes, and how many ranks own each element. To own is to keep and to update. Neither it nor ``build`` may need
  what other ranks answer: a law asks it in worlds that do not exist. The parts of a parameter go in the order of
  the ranks, or the subject declares ``any-order``;
- ``part``, a pair (index, count), if the ranks do not each train on a part of their own: tensor parallel ranks and
  the stages of a pipeline, say, all train on part 0 of 1. Every rank is given the microbatches of its part.

A law passes an option only if it is about that option: ``build(..., groups=[{"params": names, "lr": 0.1}, ...])``,
with the names of parameters, and ``step(..., max_norm=0.1)``, which clips the norm of the whole gradient; 0 is a
norm, and not none. A subject without one of these declares that by its name: see ``capabilities.py``.

A model may draw numbers from torch's generator in its forward, as dropout does. A step goes through each microbatch
once, in their order, and leaves the generator where these forwards do. Its user saves and loads it beside the state.

A model may have been changed in place by ``build``. Ranks communicate over the default group, or over groups that
``build`` makes. A subject whose ranks must start with equal values declares ``trusts-init``; one whose ranks must
have registered their parameters in one order, as DDP's, declares ``trusts-order``; one whose ranks must have as many
microbatches in each step declares ``same-count``; one whose ranks must use the same parameters, too, declares
``same-graph``. A part of the model that its user has put in ``eval()`` stays so, or the subject declares
``sets-modes``: its step puts the whole model in ``train()``. If one rank fails, the errors of the others need not
name it, since over c10d they cannot: a subject that passes the failure on in another way declares ``names-ranks``,
and is held to that.

What plain torch.optim does is no deviation. A state in its form, which numbers the parameters, need not reach a model
that has registered them in another order; what torch.optim loads, such a state may be taken for; and if an optimizer
parts by saving and loading, as NAdam does, the trainer may part alike. The kit asks torch.optim in the same process.
"""

from __future__ import annotations

from everyrank.suites.arena.groups import NAMES_RANKS
from everyrank.suites.engine.contract import Contract
from everyrank.suites.trainer.arena import (
    ANY_ORDER,
    SAME_COUNT,
    SAME_GRAPH,
    SETS_MODES,
    TRUSTS_INIT,
    TRUSTS_ORDER,
    Arena,
)

CONTRACT = Contract(
    "trainer",
    Arena.opened,
    fixtures=("process_group",),
    choices=(TRUSTS_INIT, TRUSTS_ORDER, SAME_GRAPH, SAME_COUNT, SETS_MODES, ANY_ORDER, NAMES_RANKS),
    capabilities="everyrank.suites.trainer.capabilities:CAPABILITIES",
    ledgers={"torch": "everyrank.suites.trainer"},
    law_modules=(
        "everyrank.suites.trainer.laws.training",
        "everyrank.suites.trainer.laws.models",
        "everyrank.suites.trainer.laws.ranks",
        "everyrank.suites.trainer.laws.state",
        "everyrank.suites.trainer.laws.errors",
        "everyrank.suites.trainer.laws.users",
        "everyrank.suites.trainer.laws.large_world",
        "everyrank.suites.trainer.laws.crossings",
    ),
    groups={
        "TRAINED": "train on a mean of three ranks",
        "SCALED": "see any factor of that mean: LBFGS, which divides by the gradient, does not",
        "STATE": "load what was saved",
    },
    plainest="everyrank.suites.trainer.laws.training:plainest",
    exemplar="everyrank.suites.trainer.subjects.exemplars:DATA_PARALLEL",
    nothing="everyrank.suites.trainer.subjects.exemplars:NOTHING",
    rogues="everyrank.fixtures.rogues.trainer:ROGUES",
    player="everyrank.suites.trainer.player:TrainerPlayer",
)
