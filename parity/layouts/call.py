"""The function `reshard`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from everyrank.model.run_mark import folder_of_run
from everyrank.parity.errors import Unusable, defect, without_lines
from everyrank.parity.layouts.report import Resharded, Stray, Strayed
from everyrank.parity.layouts.states import Change, State, changes, plain_states
from everyrank.parity.run.parallel import loop
from everyrank.parity.run.truth import does_not_train
from everyrank.parity.setup.alone import FailedAlone, Seat, Take, in_lone_world
from everyrank.parity.setup.given import SEED, Setup, Split, Step, checked, seed
from everyrank.parity.setup.models import Parallel, parallelize
from everyrank.parity.setup.ranks import Ranks, all_ranks
from everyrank.parity.setup.split import choose, cuts_weights
from everyrank.parity.values import dye
from everyrank.parity.values.exact import running_in
from everyrank.parity.values.lines import with_line
from everyrank.parity.values.names import parameters
from everyrank.parity.values.tree import local
from torch import nn

#: How many ranks, and what makes a model parallel on them; and what a step is there, if it is not that of step=.
Layout = tuple[int, Callable[[nn.Module], Any]] | tuple[int, Callable[[nn.Module], Any], Step]


def reshard(
    *,
    model: nn.Module | Callable[[], nn.Module],
    layouts: Sequence[Layout],
    batch: Callable[[int], Any],
    loss: Callable[[Any, Any], Any],
    save: Callable[[Any, Any, str], Any],
    load: Callable[[Any, Any, str], Any],
    optimizer: Callable[[Any], Any] | None = None,
    step: Step | None = None,
    finish: Callable[[Any], Any] | None = None,
    split: Split | None = None,
    gradients: Literal["mean", "sum"] | None = None,
    rename: Callable[[str], str] | None = None,
    clip: float | None = None,
    steps: int = 2,
    microbatches: int = 1,
) -> Resharded:
    """Train on one layout, save, load on the next, and go on: raise `Strayed` if one process does it otherwise.

    Every rank calls it. Each layout runs in processes of its own, as after a restart: nothing goes over but what was
    saved. After each load, and after each layout's steps, parameters, all that the optimizer keeps of them, its
    counts of steps and its rates are compared with those of one process, in fp64.

    Args:
        model: a function that builds the plain model, or the model.
        layouts: pairs of a number of ranks, and a function from the plain model to this rank's module there. It asks
            for the rank, the size and the mesh when it is called. A layout with a step of its own, as a pipeline,
            is a triple that ends with ``step(module, optimizer, batch)``.
        batch: from the number of a step to the whole batch; the numbers go on from layout to layout.
        loss: from a model and a batch to one number, as `parity` has it.
        save: ``save(module, optimizer, path)`` writes what the training needs to go on; each rank calls it, and
            `path` is a folder that all have. The optimizer is what optimizer= returned, with its schedulers.
        load: ``load(module, optimizer, path)`` puts it into a module whose weights are others.
        optimizer: as in `parity`, and so are step, finish, split, gradients, rename, clip and microbatches.
        steps: how many steps are trained in each layout.
    """
    __tracebackhide__ = True
    try:
        setup = Setup(
            model,
            lambda module: module,
            batch,
            loss,
            step=step,
            finish=finish,
            split=split,
            gradients=gradients,
            rename=rename,
            clip=clip,
            steps=steps,
            microbatches=microbatches,
        )
        setup = checked(setup, optimizer)
        with all_ranks() as ranks:
            report = _report(setup, ranks, [*layouts], save, load)
    except Exception as error:
        if (found := without_lines(error)) is None:
            raise
        raise found from None
    if not report.passed:
        raise Strayed(report)
    return report


#: What a rank has found at an event: its layout, "load" or "train", and how many steps were made.
Event = tuple[int, str, int]


def _report(
    setup: Setup, ranks: Ranks, layouts: list[Layout], save: Callable[..., Any], load: Callable[..., Any]
) -> Resharded:
    wrong = [each for each in layouts if not isinstance(each, tuple) or len(each) not in (2, 3)]
    if wrong:
        raise Unusable(
            f"layouts= has {wrong[0]!r}: pass pairs of a number of ranks and a function, or triples with a step."
        )
    sizes = tuple(layout[0] for layout in layouts)
    if len(layouts) < 2 or not all(0 < size <= ranks.size for size in sizes):
        raise Unusable(
            f"layouts= has {len(layouts)} layouts, of {', '.join(map(str, sizes))} ranks: pass two or more pairs of "
            f"a number of ranks, up to the {ranks.size} of this world, and a function."
        )
    ends = [setup.steps * number for number in range(len(layouts) + 1)]
    try:
        known = plain_states(setup, ends)
    except Exception as error:
        if isinstance(error, Unusable) or defect(error) is not None:
            raise
        raise does_not_train(setup, with_line(error)) from None
    # A rank that is killed removes nothing, but its run's folder goes with the run.
    made = tempfile.mkdtemp(prefix="everyrank-reshard-", dir=folder_of_run()) if ranks.rank == 0 else ""
    folder = ranks.gather(made)[0]
    try:
        for number, (size, *made_by) in enumerate(layouts):
            mine: list[tuple[Event, Change]] = []
            failed = ""
            if ranks.rank < size:
                seat = Seat(ranks.rank, size, os.path.join(folder, f"meeting-{number}"))
                stage = Stage(_of_layout(setup, size, *made_by), number, ends, known, folder)
                try:
                    in_lone_world(lambda take, stage=stage: stage.go_on(take, save, load), mine.append, seat)  # type: ignore[misc]
                except (FailedAlone, Unusable) as error:  # The others wait for what this rank has to say.
                    failed = str(error)
            _check(ranks.gather(failed), number)
            if findings := _first(ranks.gather(mine), size):
                return Resharded(findings, sizes, ends[-1])
    finally:
        ranks.gather(None)
        if ranks.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    return Resharded((), sizes, ends[-1])


def _of_layout(setup: Setup, size: int, make: Callable[[nn.Module], Any], step: Step | None = None) -> Setup:
    setup = replace(setup, parallelize=make, step=step or setup.step)
    # One rank reduces nothing.
    return replace(setup, finish=lambda _: None) if size == 1 and not setup.ends_by_hand else setup


def _check(failures: list[str], number: int) -> None:
    """Raise what ranks have failed with: the first of them, and not those whose peers have gone."""
    failed = [(rank, each) for rank, each in enumerate(failures) if each]
    own = [each for each in failed if "gloo" not in each[1] and "Connection" not in each[1]] or failed
    if own:
        raise Unusable(f"layout {number + 1} of layouts= fails on rank {own[0][0]}: {own[0][1]}")


def _first(gathered: list[list[tuple[Event, Change]]], size: int) -> tuple[Stray, ...]:
    """Return what shows at the first event at which something does, on all ranks."""
    events = sorted({event[::2] + event[1:2] for found in gathered for event, _ in found}, key=lambda each: each[1])
    if not events:
        return ()
    layout, made, kind = events[0]
    ranks: dict[Change, list[int]] = {}
    for rank, found in enumerate(gathered):
        for event, change in found:
            if event == (layout, kind, made):
                ranks.setdefault(change, []).append(rank)
    ordered = sorted(ranks, key=lambda change: change.order)
    return tuple(
        Stray(layout + 1, size, str(kind), int(made), each.kind, each.tensor, each.words, tuple(ranks[each]))
        for each in ordered
    )


class Stage:
    """One layout on this rank, in a process of its own."""

    def __init__(self, setup: Setup, number: int, ends: list[int], known: list[State], folder: str) -> None:
        self._setup, self._number, self._ends, self._known = setup, number, ends, known
        self._paths = [os.path.join(folder, f"checkpoint-{each}") for each in (number - 1, number)]

    def go_on(self, take: Take, save: Callable[..., Any], load: Callable[..., Any]) -> None:
        """Load, train and save; give what is wrong."""
        dyed = self._made(dye.dye)
        sizes = {name: each.shape for name, each in self._setup.fresh().named_parameters()}
        holdings = dye.read(dyed.modules, sizes, dye.offsets(sizes), dyed.rename)
        del dyed
        parallel = self._made(_spoil if self._number else lambda _: None)
        start, end = self._ends[self._number : self._number + 2]
        is_cut = cuts_weights(holdings, sizes)
        cut = choose(self._setup, parallel.modules, is_cut, dist.get_rank(), dist.get_world_size())

        # A rank's module has these before it loads: a layout begins with the plain model's weights, spoiled.
        start_of_all = self._known[0].values.items()
        spoiled = State({key: _other(value) for key, value in start_of_all if not key[0]})

        def compare(event: str, made: int, right: State) -> None:
            earlier = [
                (f"before step {other + 1}" if other else "at the start", state)
                for other, state in zip(self._ends, self._known, strict=True)
                if other < made
            ]
            earlier += [("before load=", spoiled)] if event == "load" else []
            for change in changes(parallel, holdings, right, earlier):
                take(((self._number, event, made), change))

        if self._number:
            load(parallel.made, parallel.optimizer.given, self._paths[0])
            compare("load", start, self._known[self._number])
        for step in range(start, end):
            batch = self._setup.whole_batch(step, torch.float64)
            seed(SEED + step)
            with running_in(torch.float64, True):
                if self._setup.step is not None:
                    self._setup.step(parallel.made, parallel.optimizer.given, batch)
                else:
                    loop(self._setup, parallel, step, cut.apply(batch), cut)
        compare("train", end, self._known[self._number + 1])
        if self._number + 2 < len(self._ends):
            if dist.get_rank() == 0:
                os.makedirs(self._paths[1], exist_ok=True)
            dist.barrier()
            save(parallel.made, parallel.optimizer.given, self._paths[1])
            dist.barrier()

    def _made(self, prepare: Callable[[nn.Module], None]) -> Parallel:
        return parallelize(self._setup, torch.float64, exact=True, prepare=prepare)


@torch.no_grad()
def _spoil(model: nn.Module) -> None:
    """Give weights other values: what is not loaded must not be right."""
    for _, parameter in parameters([model]):
        local(parameter).copy_(_other(local(parameter)))


def _other(values: torch.Tensor) -> torch.Tensor:
    return values * -0.5 + 0.25
