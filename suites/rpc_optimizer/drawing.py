"""Draw models of ``rpc-optimizer`` with Hypothesis. A model is valid by construction, also while it shrinks."""

from __future__ import annotations

from dataclasses import replace

from everyrank.fixtures.optimizers import rows
from everyrank.suites.moves.drawing import Drawing
from everyrank.suites.rpc_optimizer.model import Model, Optimizer, Param, drawn_variants
from everyrank.suites.rpc_optimizer.outline import fits, needed_by, needed_of
from everyrank.suites.rpc_optimizer.planted import PLANTED
from hypothesis import strategies as st

#: Few shapes, so that equal shapes are frequent.
_SHAPES: tuple[tuple[int, ...], ...] = ((2,), (2, 3), (3,), (), (0, 3), (3, 4), (2, 1, 2))
_MATRICES: tuple[tuple[int, ...], ...] = ((2, 3), (3, 4), (4, 2))


class ModelDrawing(Drawing):
    """One model while it is drawn."""

    def make(self) -> Model:
        self.sparse = any(feature.endswith("with sparse gradients") for feature in self.features) and self.chance(7)
        dtypes = ["float64", "float64", "float32"]
        if not self.sparse:
            dtypes += ["bfloat16"] if self.has("bf16") else []
            dtypes += ["complex128"] if self.has("SGD complex") else []
        self.dtype = self.one_of(*dtypes)
        chosen = [self._optimizer() for _ in range(self.one_of(1, 1, 2))]
        needs = frozenset().union(*(each.row.needs for each in chosen))
        owners = self.one_of((1, 2, 0), (1,), (1, 2), (0,), (2,))
        params: list[Param] = []
        for _ in range(self.draw(st.integers(1, 4))):
            params.append(self._param(params, self.one_of(*owners), needs))
        model = self._owning(Model(self.size, tuple(params), (), self.dtype), chosen)
        thawed = [
            replace(param, frozen=param.frozen and self.features.issuperset(needed_by(model, param, number)))
            for number, param in enumerate(model.params)
        ]
        return replace(model, params=tuple(thawed))

    def _optimizer(self) -> Optimizer:
        """Choose an optimizer, over no parameters yet."""
        params = (Param(0, (4, 2), gradient="sparse"),) if self.sparse else ()
        model = Model(self.size, params, (), self.dtype)
        able = [
            Optimizer((0,) if self.sparse else (), optimizer.name, variant.name)
            for optimizer in rows()
            for variant in ([optimizer.plain] if self.sparse else drawn_variants(optimizer))
        ]
        able = [each for each in able if fits(each, model) and self.features.issuperset(needed_of(each, model))]
        # Only few of some hundred variants are without arguments, or have subclasses: so these are drawn often.
        narrowed = [able, able, [each for each in able if each.variant == "defaults"]]
        if self.has("classes of the user's own"):
            narrowed.append([each for each in able if each.name == "SGD"])
        choices = self.one_of(*(found for found in narrowed if found))
        # Hypothesis shrinks towards the front, so the plainest come first.
        chosen: Optimizer = self.one_of(*sorted(choices, key=lambda each: (each.name != "SGD", each.variant != "lr")))
        given = [style for style in ("positional", "explicit") if self.has(f"{chosen.name} {style}")]
        own = [""]
        if self.has("classes of the user's own"):
            own += ["planted"] if chosen.name in PLANTED else []
            if chosen.name == "SGD":  # a complex gradient has no sign
                own += ["subclass"] if self.dtype == "complex128" else ["subclass", "signed"]
        return replace(
            chosen,
            params=(),
            own=self.one_of(*own),
            given=self.one_of("named", "named", *([] if self.sparse else given)),
            client=self.one_of(0, 0, 1, 2),
        )

    def _param(self, params: list[Param], owner: int, needs: frozenset[str]) -> Param:
        shape = self.one_of(*(_MATRICES if "2d" in needs or self.sparse else _SHAPES))
        sparse = self.sparse and ("sparse" in needs or self.one_of(True, False))
        frozen = self.has("frozen parameters") and self.chance(6)
        kind = "plain" if sparse else self.one_of("plain", "plain", "plain", "transposed", "rows", "same", "zero")
        twins = [number for number, param in enumerate(params) if param.owner == owner and param.same_as is None]
        if kind == "same" and twins:
            number: int = self.one_of(*twins)
            return replace(params[number], same_as=number)
        gradient = self.one_of("sparse", "repeated") if sparse else "zero" if kind == "zero" else "dense"
        layout = kind if (kind == "rows" and shape) or (kind == "transposed" and len(shape) == 2) else "plain"
        return Param(owner, shape, frozen, gradient, layout)

    def _owning(self, model: Model, chosen: list[Optimizer]) -> Model:
        """Give each optimizer its parameters, and of each tensor only one name."""
        names: dict[int, list[int]] = {}
        for number in range(len(model.params)):
            names.setdefault(model.tensor(number), []).append(number)
        optimizers = []
        for number, optimizer in enumerate(chosen):
            tensors = list(names.values())
            if (number or self.has("parameters of no optimizer")) and self.chance(2):
                tensors = list(self.some(tensors))
            optimizers.append(replace(optimizer, params=tuple(self.one_of(*tensor) for tensor in tensors)))
        return replace(model, optimizers=tuple(optimizers))
