"""The gradients that the trainers of a script report: right ones, new each time, and wrong ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from everyrank.suites.parameter_server import wrong_gradients
from everyrank.suites.parameter_server.arena import Gradient, Part, copied, exact
from everyrank.suites.parameter_server.model import Model


class Gradients:
    """Makes the gradients of one model, of which ``numbers`` and ``twins`` have the module's order."""

    def __init__(self, model: Model, numbers: Sequence[int], twins: Sequence[torch.Tensor]) -> None:
        self._model, self._numbers, self._twins = model, numbers, twins
        self._index = {number: index for index, number in enumerate(numbers)}
        self._made = 0  # how often new ones were made

    def part(self, missing: Sequence[int] = (), large: bool = False) -> Part:
        """Return new gradients, in the module's order."""
        self._made += 1
        generator = torch.Generator().manual_seed(self._made)
        part = [self._gradient(number, generator) for number in self._numbers]
        for number in missing:
            part[self._index[number]] = None
        return [None if gradient is None else gradient * 1024 for gradient in part] if large else part

    def _gradient(self, number: int, generator: torch.Generator) -> Gradient:
        like, param = self._twins[self._index[number]], self._model.params[number]
        if not like.requires_grad:
            return None
        return torch.zeros_like(like) if param.zero else exact(like, generator, param.sparse)

    def alike(self, part: Part, shared: str) -> tuple[Part, Part]:
        """Return the part with dense gradients of the same numbers, and what is reported: tensors of one memory."""
        longest: dict[torch.dtype, torch.Tensor] = {}
        for gradient in part:
            if gradient is not None and not gradient.is_sparse:
                longest[gradient.dtype] = max(longest.get(gradient.dtype, gradient), gradient, key=torch.numel)
        lines = {dtype: gradient.reshape(-1).clone() for dtype, gradient in longest.items()}
        views: dict[tuple[torch.dtype, torch.Size], torch.Tensor] = {}
        own: Part = []
        for gradient in part:
            if gradient is None or gradient.is_sparse:
                own.append(gradient)
                continue
            shape, line = gradient.shape, lines[gradient.dtype]
            expanded = shared == "number" and gradient.numel() > 1
            view = line[:1].expand(shape) if expanded else line[: gradient.numel()].view(shape)
            own.append(views.setdefault((gradient.dtype, shape), view))
        return copied(own), own

    def changed(self, part: Part, defect: str, param: int) -> Part:
        """Return the part with one wrong gradient, or as a wrong list; see ``RoundMoves.refuse``."""
        if defect in wrong_gradients.ALL:
            return wrong_gradients.ALL[defect][0](part)
        index = self.index_of(defect, param)
        gradient = part[index]
        assert gradient is not None  # the outline allows it only for a parameter that has one
        return [*part[:index], wrong_gradients.change(defect, gradient), *part[index + 1 :]]

    def index_of(self, defect: str, param: int) -> int:
        """Return where the module has the parameter of this number, of those for which the defect is one."""
        return self._index[self._model.wrong_by(defect)[param]]
