"""How far some steps of a subject lie from the plain model's, by the subject's own knowledge of its parts.

This is not parity: it knows where each part is, and looks at starts, losses, gradients, norms and ends alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.parity.parallel.subject import Parallel

STEPS = 2

Found = dict[str, torch.Tensor]


def deviations(subject: Parallel, dtype: torch.dtype = torch.float64, steps: int = STEPS) -> dict[str, float]:
    """Return the largest difference of each tensor that this rank sees, in the reference's order.

    A tensor that no rank sees differs by infinity.
    """
    found, expected = trained(subject, dtype, steps), reference(subject, dtype, steps)
    seen: list[Any] = [None] * subject.size
    dist.all_gather_object(seen, set(found))
    missing = expected.keys() - set().union(*seen)
    return {
        name: difference(found[name], expected[name]) if name in found else float("inf")
        for name in expected
        if name in found or name in missing
    }


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return float((found.double() - expected.double()).abs().max())


def trained(subject: Parallel, dtype: torch.dtype, steps: int) -> Found:
    """Train the subject, and return all that is seen, by step and name."""
    made = subject.parallelize(subject.model().to(dtype))
    module, optimizer = made if isinstance(made, tuple) else (made, None)
    optimizer = subject.optimizer(module.parameters()) if optimizer is None else optimizer
    found = _named("start", 0, subject.whole(module, lambda parameter: parameter))
    for step in range(steps):
        seen: Found = {}

        def read(*_: Any, seen: Found = seen) -> None:
            seen.update(subject.whole(module, lambda parameter: parameter.grad))

        late = subject.reduces_in_step
        hook = (optimizer.register_step_post_hook if late else optimizer.register_step_pre_hook)(read)
        train = getattr(subject, "step", subject.train)
        result = train(module, optimizer, subject.batch(step))
        hook.remove()
        found |= _scalars(step, result) | _named("gradient", step, seen) | _end(subject, module, step)
        averages = subject.whole(module, lambda parameter: optimizer.state.get(parameter, {}).get("ema"))
        found |= _named("average", step, averages)
    return found


def _end(subject: Parallel, module: nn.Module, step: int) -> Found:
    buffers = {subject.plain_name(name): buffer.clone() for name, buffer in module.named_buffers()}
    return _named("end", step, subject.whole(module, lambda parameter: parameter) | buffers)


def reference(subject: Parallel, dtype: torch.dtype, steps: int) -> Found:
    """Train the plain model on whole batches."""
    model = subject.model().to(dtype)
    optimizer = subject.optimizer(model.parameters())
    found = _named("start", 0, dict(model.named_parameters()))
    for step in range(steps):
        loss = subject.loss(model, subject.batch(step))
        loss.backward()
        result: Any = loss.detach()
        if subject.clip is not None:
            result = (loss.detach(), _clip(model, subject.clip, subject.epsilon))
        gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        found |= _scalars(step, result) | _named("gradient", step, gradients)
        optimizer.step()
        optimizer.zero_grad()
        found |= _named("end", step, dict(model.named_parameters()) | dict(model.named_buffers()))
        kept = {name: optimizer.state.get(each, {}).get("ema") for name, each in model.named_parameters()}
        found |= _named("average", step, {name: each for name, each in kept.items() if each is not None})
    return found


def _clip(model: nn.Module, most: float, epsilon: float) -> torch.Tensor:
    """Clip as torch does, but for what is added to the norm, and return the norm."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    for gradient in gradients:
        gradient.mul_((most / (norm + epsilon)).clamp(max=1.0))
    return norm


def _named(kind: str, step: int, tensors: Found) -> Found:
    return {f"{step} {kind} {name}": _dense(tensor) for name, tensor in tensors.items()}


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to_dense() if tensor.is_sparse else tensor.clone()


def _scalars(step: int, result: Any) -> Found:
    loss, norm = result if isinstance(result, tuple) else (result, None)
    return _named("", step, {"loss": loss} | ({} if norm is None else {"norm": norm}))
