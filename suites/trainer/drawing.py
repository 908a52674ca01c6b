"""Draw models of ``trainer`` with Hypothesis. A model is valid by construction, also while it shrinks."""

from __future__ import annotations

from everyrank.fixtures.optimizers import Row, Variant, row
from everyrank.suites.moves.drawing import Drawing
from everyrank.suites.trainer.features import OPTIMIZERS
from everyrank.suites.trainer.model import Group, Model, Param
from hypothesis import strategies as st

#: Needs of a variant that no draw provides.
_NOT_DRAWN = {"cuda", "non-leaf"}

#: Variants of LBFGS that evaluate the closure a few times a step: each time amplifies the order of a sum.
_FEW_EVALUATIONS = {"everything", "max-iter", "max-eval"}

#: Layouts that are not plain, each with the feature that allows it.
_LAYOUTS = {
    "transposed": "transposed parameters",
    "gaps": "parameters with gaps",
    "shared": "shared storage",
    "empty": "empty parameters",
    "scalar": "scalars",
    "one-row": "few rows",
}


class ModelDrawing(Drawing):
    """One model while it is drawn."""

    def make(self) -> Model:
        self.closures = self.sometimes("closures") and self.chance(3)
        self.sparse = not self.closures and self.sometimes("sparse gradients")
        self.kind = self._kind()
        self.optimizer, self.variant = self._optimizer()
        self.layers = self._layers()
        self.params: list[Param] = []
        count = self.one_of(0, 1, 2, 3, 1, 2, 3)
        for number in range(count if self._more_than_layers() else 0):
            self.params.append(self._param(number))
        self.groups = self._groups()
        self.buffer = self.sometimes("buffers")
        own_values = self._own_values()
        own_buffer = self.buffer and self.has("own buffers") and self.chance(2)
        tied = any(param.also for param in self.params)
        # A parameter with two names goes by that which was registered first, and LBFGS sums over all in their order.
        able = not tied and not self.closures and self.sometimes("orders of registration", 2)
        self.reordered = self._ranks() if able else ()
        return Model(
            size=self.size,
            layers=self.layers,
            params=tuple(self.params),
            buffer=self.buffer,
            optimizer=self.optimizer,
            variant=self.variant,
            groups=self.groups,
            own_values=own_values,
            own_buffer=own_buffer,
            reordered=self.reordered,
            losses=self.has("losses"),
            options=self.has("changed rates"),
        )

    def _ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.draw(st.sets(st.integers(0, self.size - 1), min_size=1, max_size=self.size - 1))))

    def _own_values(self) -> bool:
        feature = "own frozen values" if any(param.frozen for param in self.params) else "own values"
        return self.has("own values") and self.has(feature) and self.chance(2)

    # --- the optimizer -------------------------------------------------------------------------------

    def _kind(self) -> str:
        """Draw a kind of model that not every optimizer takes."""
        if self.closures:
            return ""
        if self.sparse:
            return "sparse"
        if self.sometimes("mixed dtypes"):
            return "mixed"
        return "complex" if self.sometimes("complex parameters") else ""

    def _optimizer(self) -> tuple[str, str]:
        if self.closures:
            found = [row("LBFGS")]
        elif self.kind == "mixed":
            found = [row("SGD")]  # others amplify the error of a coarse sum
        else:
            found = [optimizer for optimizer in OPTIMIZERS if self.has(optimizer.name)]
        if self.kind in ("sparse", "complex"):
            found = [optimizer for optimizer in found if self.kind in optimizer.takes]
        pairs = [
            (optimizer.name, variant.name)
            for optimizer in found
            for variant in optimizer.variants
            if self._takes(optimizer, variant)
        ]
        # Hypothesis shrinks towards the front, so the plainest come first; SGD and Adam are drawn more often.
        pairs.sort(key=lambda names: (names != ("SGD", "lr"), names[0] != "SGD"))
        often = [
            pair for pair in pairs if pair in (("SGD", "everything"), ("SGD", "momentum"), ("Adam", "everything"))
        ]
        return self.one_of(*pairs, *often * 20)  # type: ignore[no-any-return]

    def _takes(self, optimizer: Row, variant: Variant) -> bool:
        if self.closures:
            return variant.name in _FEW_EVALUATIONS
        if variant.needs & _NOT_DRAWN or variant.group_arguments or "fused" in variant.arguments:
            return False
        if self.kind == "sparse":
            return variant.name == "lr" and "sparse" not in variant.refuses
        return self.kind != "complex" or "complex" not in variant.refuses

    # --- the model -----------------------------------------------------------------------------------

    def _layers(self) -> tuple[int, ...]:
        # A width that the ranks divide, for those who cut layers.
        widths = st.integers(2, 5) if self.has("any width") else st.just(self.size)
        most = 2 if self.has("any width") else 1
        return tuple(self.draw(st.lists(widths, max_size=most)))

    def _more_than_layers(self) -> bool:
        return self.has("branches") and self.has("parameters of no layer")

    def _param(self, number: int) -> Param:
        name = self.name_of(number)
        frozen = not self.closures and self.sometimes("frozen parameters", 2)
        unused = not self.closures and self.sometimes("unused parameters")
        also = self.second_name_of(number)
        if self.sparse and (number == 0 or self.chance(2)):
            return Param(name, (3, 2), "embedding", frozen=frozen, also=also, unused=unused)
        shape, layout = self._shape()
        if self.params and self.chance(3) and self.params[-1].layout == "plain":
            # With equal shapes a gradient of the wrong parameter raises no error.
            shape, layout = self.params[-1].shape, "plain"
        dtype = "float64"
        if self.kind in ("mixed", "complex") and self.one_of(True, False):
            dtype = {"mixed": "float32", "complex": "complex128"}[self.kind]
        return Param(name, shape, layout, dtype, frozen, also=also, unused=unused)

    def _shape(self) -> tuple[tuple[int, ...], str]:
        fewest = 1 if self.has("few rows") else self.size
        rows = self.draw(st.integers(fewest, 4))
        shape = (rows, *self.draw(st.lists(st.integers(1, 3), max_size=2)))
        able = [layout for layout, feature in _LAYOUTS.items() if self.has(feature)]
        layout = str(self.one_of(*["plain"] * len(able), *able, "plain"))
        if layout == "scalar":
            return (), "plain"
        if layout == "empty":
            return (0, *shape[1:]), "plain"
        if layout == "one-row":
            return (1, *shape[1:]), "plain"
        if layout == "transposed":
            return (2 + rows % 2, 4), layout
        return shape, layout

    def _groups(self) -> tuple[Group, ...]:
        """Draw the groups that the trainer is built with; parameters that are in none are added later."""
        if self.closures or not (self.has("groups") or self.has("added groups")) or self.chance(2):
            return ()
        count = len(self.params)
        groups = [Group(self.below(count + 1) if self.has("added groups") else count)]
        left = count - groups[0].count
        if left and self.has("groups") and self.chance(2):
            groups.append(self.group(left))
        return tuple(groups)

    def group(self, left: int) -> Group:
        """Draw a group of the next parameters, of which ``left`` are in no group."""
        decays = self.one_of(None, 0.25) if self._has_decay() else None
        return Group(1 + self.below(left), self.one_of(0.03125, 0.25), decays)

    def _has_decay(self) -> bool:
        # No optimizer adds its weight decay to a sparse gradient.
        return self.kind != "sparse" and "weight_decay" in row(self.optimizer).fullest.arguments
