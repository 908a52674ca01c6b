"""What a rank of a script does so that its run can be compared: it keeps what each optimizer's step is made from.

It runs in the script's own process, before the script, when torch has just been imported; it changes nothing that the
script computes, and ends the process when enough steps are kept.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from everyrank.leaks.libraries import redirect_multiprocessing
from everyrank.parity.script import asked, double, replaced, rows, written
from everyrank.parity.script.kept import Kept, Part, part_of
from everyrank.parity.script.moments import Moments
from everyrank.parity.script.names import Roots, dtype_of_shards, kinds, unwrapped
from everyrank.parity.script.remarks import Remarks
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

#: The rows of more calls of a module in a step are not kept.
_MOST_CALLS = 4096


def start() -> None:
    """Begin to record in this process, if the command has asked for it."""
    folder = os.environ.pop(asked.FOLDER, "")
    steps = int(os.environ.pop(asked.STEPS, "3"))
    options = os.environ.pop(asked.OPTIONS, "").split()
    shared = os.environ.pop(asked.SHARED, "")
    if folder:
        redirect_multiprocessing(shared)
        recorder = Recorder(Kept(folder), steps, moved="moved" in options)
        recorder.watch()
        replaced.replace(recorder.remarks.note, recorder.remarks.find, options)
        if "fp64" in options:
            recorder.widen()
        if os.environ.get("RANK") == "0":
            written.watch(recorder.remarks.wrote, folder)


def _random_state() -> Tensor:
    if not torch.cuda.is_initialized():
        return torch.get_rng_state()
    return torch.cat([torch.get_rng_state(), torch.cuda.get_rng_state()])


class Recorder:
    """Sees what this process's training does, and when: what is kept of it are moments."""

    def __init__(self, kept: Kept, steps: int, moved: bool) -> None:
        self._kept, self._most, self._moved = kept, steps, moved
        self.remarks = Remarks(kept)
        self._facts = self.remarks.facts
        self._roots = Roots()
        self._depth = 0
        self._random: Tensor | None = None
        self._in_step = 0
        self._in_backward = False
        self._optimizers: list[torch.optim.Optimizer] = []
        self._counts: Counter[int] = Counter()
        self._rows: list[list[str]] = []
        self._moments = Moments(self.remarks)
        self._after: dict[str, Part] = {}

    # --- what is watched --------------------------------------------------------------------------

    def watch(self) -> None:
        self.remarks.write()
        self._handles = [
            nn.modules.module.register_module_forward_pre_hook(self._enter),
            nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]
        _wrap(torch.autograd, "backward", self._backward)
        _wrap(torch.Tensor, "backward", self._backward)
        _wrap(torch.optim.lr_scheduler.ReduceLROnPlateau, "step", self._listen)
        self._watch_clips()

    def _watch_clips(self) -> None:
        _wrap(nn.utils, "clip_grad_norm_", self._clip)
        nn.utils.clip_grad.clip_grad_norm_ = nn.utils.clip_grad_norm_

    def widen(self) -> None:
        """Let the script run in double, and keep what cannot be."""
        self._facts.wide = True
        double.start(self.remarks.narrow)

    # --- modules ----------------------------------------------------------------------------------

    def _enter(self, module: nn.Module, given: Any) -> None:
        self._depth += 1
        if not self._facts.eps and torch.is_autocast_enabled("cpu"):
            self._compute_in(torch.get_autocast_dtype("cpu"))
        if not torch.is_grad_enabled() or not module.training:
            return
        if self._depth == 1:
            self._enter_root(
                module, given, sys._getframe(1).f_locals.get("kwargs", {})
            )  # a global hook is not given them
        is_first = bool(self._roots.modules) and module is self._roots.modules[0]
        if is_first and not self._moments.have("buffer"):
            self._moments.keep("buffer", self._roots.buffers())  # DDP has made them alike

    def _enter_root(self, module: nn.Module, given: Any, named: Any) -> None:
        if self._roots.add(module):
            self._begin(module)
        if self._roots.modules and unwrapped(module) is self._roots.modules[0] and len(self._rows) < _MOST_CALLS:
            self._rows.append(rows.hashes((given, named)))
            self._random = _random_state()

    def _leave(self, module: nn.Module, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._random is not None:
            if not self._facts.draws and not torch.equal(self._random, _random_state()):
                self._facts.draws = True
                self.remarks.write()
            self._random = None

    def _begin(self, module: nn.Module) -> None:
        """Keep the weights with which a module begins."""
        facts = self._facts
        kind, wrapper = kinds(module)
        facts.modules.append(kind.__name__)
        facts.origins.append("" if "<locals>" in kind.__qualname__ else kind.__module__)
        facts.wrappers.append(wrapper)
        facts.batch_norms = self._roots.batch_norms()
        self._moments.keep_new("weight", self._roots.parameters())
        if self._moved:
            rows.move(unwrapped(module).parameters(), facts.eps)
        self.remarks.write()
        if (dtype := dtype_of_shards(module)) is not None:
            self._compute_in(dtype)

    def _compute_in(self, dtype: torch.dtype) -> None:
        """Take the rounding of the dtype in which modules compute for that of the run."""
        self._facts.eps = max(self._facts.eps, torch.finfo(dtype).eps)
        self.remarks.write()
        if self._moved:
            rows.move(self._roots.parameters().values(), self._facts.eps)

    # --- a step -----------------------------------------------------------------------------------

    def _backward(self, backward: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if not self._in_backward and given:
            roots = [given[0]] if isinstance(given[0], Tensor) else list(given[0])
            self._facts.backwards += 1
            if self._facts.backwards == 1:
                self.remarks.write()
            loss = {"": roots[0]} if len(roots) == 1 and roots[0].numel() == 1 else {}
            self._moments.keep("loss", loss)
        inside, self._in_backward = self._in_backward, True
        try:
            return backward(*given, **named)
        finally:
            self._in_backward = inside

    def _listen(self, step: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._facts.listens = True
        return step(*given, **named)

    def _clip(self, clip: Callable[..., Any], parameters: Any, *given: Any, **named: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        wanted = self._roots.named(parameters)
        self._moments.keep_gradients("gradient at the clip", wanted)
        norm = clip(parameters, *given, **named)
        self._moments.keep("norm", {"": norm})
        return norm

    def _before_step(self, optimizer: torch.optim.Optimizer, given: Any, named: Any) -> None:
        self._in_step += 1
        if self._in_step > 1:
            return
        if not any(optimizer is each for each in self._optimizers):
            self._optimizers.append(optimizer)
            self._facts.optimizers.append(type(optimizer).__name__)
        wanted = self._trained_by(optimizer)
        self._facts.moves = self._facts.moves or _are_moved(wanted, self._after)
        closure = (given[1] if len(given) > 1 else named.get("closure")) is not None  # the first is the optimizer
        if not closure:
            self._moments.keep_gradients("gradient", wanted)
        rates = [group.get("lr", 0.0) for group in optimizer.param_groups]
        rates = [rate.detach().double() if isinstance(rate, Tensor) else rate for rate in rates]
        if len(self._optimizers) == 1 and not self._facts.steps:
            self._facts.rate = float(rates[0])
        self._moments.keep("rate", {"": torch.tensor([float(rate) for rate in rates], dtype=torch.float64)})
        self._moments.keep("state", _state(optimizer, wanted))

    def _trained_by(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        return self._roots.named(each for group in optimizer.param_groups for each in group["params"])

    def _after_step(self, optimizer: torch.optim.Optimizer, given: Any, named: Any) -> None:
        self._in_step -= 1
        if self._in_step:
            return
        wanted = self._trained_by(optimizer)
        if not self._moments.have("gradient"):
            self._moments.keep_gradients("gradient", wanted)  # a closure has made them
        self._after |= self._moments.keep("parameter", wanted).parts
        self._facts.steps += 1
        self._counts[id(optimizer)] += 1
        whole = min(self._counts.values())
        if whole > self._facts.rounds:
            self._end_round(whole)
        if self._facts.rounds >= self._most or self._facts.steps >= 20 * self._most:
            self._end()

    def _end_round(self, whole: int) -> None:
        self._facts.rounds = whole
        self._kept.write(whole, self._rows, self._moments.take())
        self.remarks.write()
        self._rows = []

    def _end(self) -> None:
        """End here: enough is kept. The command ends the processes of all ranks together."""
        self._facts.done = True
        self.remarks.write()
        sys.stdout.flush()
        sys.stderr.flush()
        self._kept.write_done()
        while True:
            time.sleep(3600)


def _state(optimizer: torch.optim.Optimizer, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        f"{key}` of `{name}": value
        for name, each in wanted.items()
        for key, value in optimizer.state.get(each, {}).items()
        if isinstance(value, Tensor)
    }


def _are_moved(wanted: Mapping[str, Tensor], after: Mapping[str, Part]) -> bool:
    """Return whether parameters are others than after the last step: averaged over ranks, say."""
    now = {name: part_of(each) for name, each in wanted.items() if name in after}
    return any(part is not None and not torch.equal(part.values, after[name].values) for name, part in now.items())


def _wrap(owner: Any, name: str, method: Callable[..., Any]) -> None:
    """Let a method of ours stand between a function of torch's and those that call it."""
    setattr(owner, name, functools.wraps(getattr(owner, name))(functools.partial(method, getattr(owner, name))))
    if isinstance(owner, type):
        inner = getattr(owner, name)
        setattr(owner, name, functools.wraps(inner)(lambda *given, **named: inner(*given, **named)))
