"""The moves of ``parameter-server`` in which the user's optimizer does more than a step, or fails."""

from __future__ import annotations

from collections.abc import Iterator

from everyrank.suites.moves.move import first_trained, last_trained, move, only_if
from everyrank.suites.parameter_server.moves_of_reports import READ, are_trained, filled, some
from everyrank.suites.parameter_server.moves_of_rounds import RoundMoves
from everyrank.suites.parameter_server.outline import Outline


def _failing_needs(outline: Outline, missing: tuple[int, ...]) -> Iterator[str]:
    # Who lets a round expire can end it with an error for all.
    yield "expired rounds"
    # A server may leave out the step of a round without any gradient.
    yield from only_if(not outline.model.expires and (outline.given or set(outline.trained) - set(missing)))
    yield from outline.missing_needs(missing, len(outline.absent))


def _failed(outline: Outline, missing: tuple[int, ...] = ()) -> None:
    answered = outline.answered
    outline.report(outline.absent, missing)
    outline.answered = answered


def _change_needs(outline: Outline, changes: str) -> Iterator[str]:
    if changes == "buffer":
        yield "buffers"
    elif changes == "frozen":
        # A server may leave out the step of a round without any gradient.
        yield from only_if(outline.trained[1:])
        model = outline.model
        yield from Outline(model).missing_needs((*model.trained[-1:],), len(model.trainers))


class UpdateMoves(RoundMoves):
    """What the optimizer on the server does, as its user has built it."""

    @move(
        "parity.rounds",
        needs_of={"changes": _change_needs},
        then=filled,
        drawn={"changes": ("memory", "buffer", "frozen")},
        kinds=(),
        further={1: ({"changes": "memory"}, {"changes": "buffer"}), 4: ({"changes": "frozen"},)},
        shown_by="fill",
        writes=(*READ[:-1], "frozen"),
        reads=READ,
        reads_further={4: ("frozen",)},
    )
    def act(self, changes: str) -> None:
        """Make the round full; after its step the optimizer changes the module, as its user has built it.

        ``changes``: it halves all parameters, in new ``memory``, by a hook that is registered now, or adds 1 to each
        ``buffer``, by a hook that it was built with. Or the last parameter is ``frozen`` then: nobody has a gradient
        of it in one more round, after which it is thawed.
        """
        updates = self.sides.updates
        for acts in ("freeze", "thaw") if changes == "frozen" else (changes,):
            updates.act(acts)
            try:
                for trainer in self.sides.absent:
                    self.sides.report(trainer, self.sides.gradients.part())
            finally:
                updates.act("")

    @move(
        "clean-round",
        needs=_failing_needs,
        needs_of={"missing": are_trained},
        then=_failed,
        drawn={"missing": some},
        kinds=(),
        further={1: ({},), 3: ({"missing": first_trained}, {"missing": last_trained})},
        shown_by="fill",
        writes=("round", "gradient", "failed update"),
        reads=("round",),
    )
    def fail_update(self, missing: tuple[int, ...] = ()) -> None:
        """Make the round full, and let its update fail: all trainers get an error, and the next round is clean.

        ``missing``: those who report now have no gradient of these parameters.
        """
        sides = self.sides
        for trainer in sides.absent:
            sides.updates.fails = "this update fails on purpose" if sides.absent == [trainer] else ""
            sides.own[trainer] = sides.gradients.part(missing)
            sides.waiting[trainer] = sides.send(trainer, sides.own[trainer])
        for report in sides.waiting.values():
            report.refusal()
        sides.updates.fails = ""
        sides.begin()
