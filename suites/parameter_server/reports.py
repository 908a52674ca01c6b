"""The reports of a trainer in a case: each is answered, refused, or kept waiting."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.errors import Deviation, kinds

#: How long an answer that is due may take, in seconds; only a failing case waits that long.
PATIENCE = 5.0
#: How long to wait, in seconds, until a server that blocks has taken a report, before the next trainer reports.
GRACE = 0.05


_SET_EXCEPTION = ": torch's RPC answers with what Future.set_exception() was given; raise it in a then()"


class Report:
    """One report of one trainer, made on this thread, or, if ``aside``, on its own: the server may block.

    The server has the report when ``ask`` returns; or, if ``ask`` only sends it, when somebody sets ``taken``.
    If it is made again, it is answered as soon as one of its calls is, and has an error if all of them have.
    """

    def __init__(
        self, trainer: int, ask: Callable[[], Any], aside: bool = False, taken: threading.Event | None = None
    ) -> None:
        self.trainer = trainer
        self.model: Any = None
        self.error: Exception | None = None
        self.accepted = taken or threading.Event()
        self._sent = taken is not None
        self.answered = threading.Event()
        self._calls, self._ending = 1, threading.Lock()
        self._over = threading.Event()
        self.began, self.ended = time.monotonic(), math.inf
        self._thread = threading.Thread(target=self._ask, args=(ask,), daemon=True)
        if aside:
            self._thread.start()
        else:
            self._ask(ask)

    def again(self, ask: Callable[[], Any], taken: threading.Event | None) -> None:
        """Make the report once more, while it waits for its answer; the arguments are those of the first."""
        self.accepted, self._sent = taken or threading.Event(), taken is not None
        self._calls += 1
        threading.Thread(target=self._ask, args=(ask,), daemon=True).start()

    def _ask(self, ask: Callable[[], Any]) -> None:
        try:
            got = ask()
        except Exception as error:
            self._ended(None, error)
        else:
            if isinstance(got, torch._C.Future):  # what then() of a torch.futures.Future returns
                got.add_done_callback(self._done)
            else:
                self._ended(got, None)
        if not self._sent:
            self.accepted.set()

    def _done(self, future: Any) -> None:
        try:
            model, error = future.value(), None
        except Exception as raised:
            model, error = None, raised
        self._ended(model, error)

    def _ended(self, model: Any, error: Exception | None) -> None:
        with self._ending:
            self._calls -= 1
            last = not self._calls
            if not self.answered.is_set() and (last or error is None):
                self.ended = time.monotonic()
                self.model, self.error = model, error
                self.answered.set()
        self.accepted.set()
        if last:
            self._over.set()

    def due(self, patience: float | None = None) -> None:
        """Wait for the end of a report that has no reason to take longer."""
        patience = PATIENCE if patience is None else patience
        if not self._over.wait(patience):
            raise self.unanswered(patience)
        if self._thread.ident is not None:
            self._thread.join(patience)

    def unanswered(self, patience: float) -> Deviation:
        which = " in one of its calls" if self.answered.is_set() else ""
        return Deviation(f"trainer {self.trainer} was not answered{which} within {patience:g} s")

    def answer(self) -> Any:
        """Return the new model, which is due."""
        self.due()
        if self.error is not None:
            text = f"trainer {self.trainer} was refused: {in_a_line(self.error)}"
            raise Deviation(text, kinds(self.error)) from self.error
        return self.model

    def values(self) -> list[torch.Tensor]:
        """Return the parameters of the new model, as they are now."""
        return [value.detach().clone() for value in parameters(self.answer(), self.trainer)]

    def refusal(self, patience: float | None = None) -> Exception:
        """Return the error that is due."""
        self.due(patience)
        if self.error is None:
            got = type(self.model).__name__
            why = _SET_EXCEPTION if isinstance(self.model, Exception) else ""
            raise Deviation(f"trainer {self.trainer} got no error but a {got} for an answer{why}")
        return self.error


def settle(reports: Sequence[Report]) -> None:
    """Wait until all are answered. Raise for the first that is refused: because of it, others may wait in vain."""
    until = time.monotonic() + PATIENCE
    while waiting := [report for report in reports if not report.answered.is_set()]:
        if any(report.error is not None for report in reports) or time.monotonic() > until:
            break
        waiting[0].answered.wait(GRACE)
    for report in sorted(reports, key=lambda report: report.error is None):
        if not report.answered.is_set():
            raise report.unanswered(PATIENCE)
        report.answer()


def parameters(answer: Any, trainer: int) -> list[torch.Tensor]:
    """Return the parameters in an answer: a module, or the parameters themselves in its order."""
    if isinstance(answer, torch.nn.Module):
        return list(answer.parameters())
    if isinstance(answer, (list, tuple)) and all(isinstance(value, torch.Tensor) for value in answer):
        return list(answer)
    raise Deviation(f"trainer {trainer} was answered with a {type(answer).__name__}, which is no model")


# --- functions that run on the trainers' workers ------------------------------------------------------


def relay(server: Any, gradients: Sequence[torch.Tensor | None], trainer: int) -> Any:
    """Report to the server from here; only the answer travels on to the driver."""
    return plain(server.rpc_sync().update_and_fetch(gradients, trainer))


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def pass_on(server: Any, gradients: Sequence[torch.Tensor | None], trainer: int) -> Any:
    """Report as ``relay`` does, without a thread that waits: a script that fails leaves some reports unanswered.

    What the server raises is a RuntimeError then, with the error in its text.
    """
    return server.rpc_async().update_and_fetch(gradients, trainer).then(lambda answer: plain(answer.value()))


def plain(answer: Any) -> Any:
    """Return an answer as it travels: a model's parameters without their module."""
    if isinstance(answer, torch.nn.Module):
        return [param.detach().clone() for param in answer.parameters()]
    return answer
