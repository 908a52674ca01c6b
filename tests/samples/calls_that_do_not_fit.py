"""Calls of ``everyrank.run``: `make check` has mypy refuse each that does not fit, and report what is not needed."""

from __future__ import annotations

from functools import partial

import everyrank


def loss(step: int = 0) -> float:
    return 1.0 / (step + 1)


def needs_step(step: int) -> float:
    return loss(step)


losses: list[float] = everyrank.run(loss)
losses = everyrank.run(partial(needs_step, 3), 4, backend="gloo", timeout=30, gpus=0.5, gpu_memory="20GB")
nothing: list[None] = everyrank.run(lambda: None, ranks=3, group=False, launcher="spawn", seed=7)

texts: list[str] = everyrank.run(loss)  # type: ignore[arg-type]
everyrank.run(needs_step)  # type: ignore[arg-type]
everyrank.run(loss())  # type: ignore[arg-type]
everyrank.run(loss, "4")  # type: ignore[arg-type]
everyrank.run(loss, ranks=[2, 4])  # type: ignore[arg-type]
everyrank.run(loss, 2, False)  # type: ignore[call-arg]
everyrank.run(loss, timout=30)  # type: ignore[arg-type]
everyrank.run(loss, timeout="30")  # type: ignore[arg-type]
