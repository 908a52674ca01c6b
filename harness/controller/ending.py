"""The end of a world after its test: it closes up and is kept, or its ranks leave in order."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from everyrank.controller.conversation import Conversation
from everyrank.patience import Patience
from everyrank.verdict.fates import Fate
from everyrank.wire.channel import Closed
from everyrank.wire.messages import CloseUp, Leave

#: A warm world must pass its closing barrier within this many seconds, and any world must leave.
IN_ORDER = 5.0


def close_up(talk: Conversation) -> bool:
    """Let the ranks of a world that is to be kept pass a closing barrier. Return whether all of them passed."""
    try:
        for seat in talk.world.seats:
            seat.channel.send(CloseUp())
    except Closed:
        return False
    _until(talk, lambda: len(talk.closed_up) == len(talk.fates.ranks))
    for fate in talk.fates.ranks:
        problem = talk.closed_up.get(fate.rank, "did not come to the closing barrier")
        if problem:
            fate.out_of_order = problem
    return not any(fate.out_of_order for fate in talk.fates.ranks)


def leave(talk: Conversation) -> None:
    """Let all ranks that filed a record leave, and wait for them."""
    _leave(talk, [fate for fate in talk.fates.ranks if fate.record is not None])


def dismiss(talk: Conversation) -> None:
    """End an idle warm world in order."""
    _leave(talk, talk.fates.ranks)


def _leave(talk: Conversation, leaving: list[Fate]) -> None:
    seats = talk.world.seats
    for fate in leaving:
        talk.send(fate.rank, Leave())
    _until(talk, lambda: all(fate.rank in talk.left or seats[fate.rank].gone for fate in leaving))
    for fate in leaving:
        if fate.rank in talk.left:
            if talk.left[fate.rank]:
                talk.fates.late[fate.rank] = talk.left[fate.rank]
        elif seats[fate.rank].status is not None:
            fate.out_of_order = f"ended after its record: {_plain_exit(seats[fate.rank].status)}"
        elif seats[fate.rank].lost:
            fate.out_of_order = f"was lost after its record: {seats[fate.rank].lost}"
        elif not talk.fates.launcher_lost:
            fate.out_of_order = f"did not leave within {IN_ORDER:g} s of its record"
    talk.show_the_rest()
    talk.world.end()


def _until(talk: Conversation, done: Callable[[], bool]) -> None:
    patience = Patience(IN_ORDER, talk.waited_for_cores)
    while not done() and not talk.fates.launcher_lost and (left := patience.turn()):
        talk.listen(left)


def _plain_exit(status: int | None) -> str:
    if status is None:
        return "unknown exit status"
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.WEXITSTATUS(status)}"
