"""Draw models of ``parameter-server`` with Hypothesis. A model is valid by construction, also while it shrinks."""

from __future__ import annotations

from everyrank.fixtures.optimizers import Row, Variant, every, row
from everyrank.suites.moves.drawing import Drawing
from everyrank.suites.parameter_server.model import Model, Param
from everyrank.suites.parameter_server.points import EXCLUDED
from everyrank.suites.parameter_server.wrong_gradients import NOT_FINITE
from hypothesis import strategies as st

#: Few shapes, so that equal shapes are frequent.
_SHAPES: tuple[tuple[int, ...], ...] = ((2,), (2, 3), (3,), (3, 2), (4, 3), (2, 1, 2))
_MATRICES: tuple[tuple[int, ...], ...] = ((2, 3), (3, 2), (4, 3))


class ModelDrawing(Drawing):
    """One model while it is drawn."""

    def make(self) -> Model:
        self.sparse = self.has("sparse gradients") and self.chance(8)
        self.complex = not self.sparse and self.has("complex parameters") and self.chance(10)
        self.optimizer, self.variant = self._choose()
        self.dtype = "complex128" if self.complex else "float64"
        if not self.complex and self.has(f"{self.optimizer.name} in float32") and self.chance(5):
            self.dtype = "float32"
        self.params: list[Param] = []
        for number in range(self.draw(st.integers(1, 4))):
            self.params.append(self._param(number))
        return Model(
            size=self.size,
            params=tuple(self.params),
            trainers=self._trainers(),
            optimizer=self.optimizer.name,
            variant=self.variant.name,
            non_finite=self._non_finite(),
            expires=self.has("expired rounds") and self.chance(5),
            keeps=self.has("answers that are kept or changed"),
            buffer=self.sometimes("buffers"),
        )

    def _non_finite(self) -> bool | None:
        """Draw whether the server is built to take values that are not finite, or to refuse them."""
        able = [True] if self.has("values that are not finite") else []
        able += [False] if any(self.has(f"refuses {name}") for name in NOT_FINITE) else []
        chosen: bool | None = self.one_of(None, None, *able)
        return chosen

    def _choose(self) -> tuple[Row, Variant]:
        """Choose an optimizer and its variant. Hypothesis shrinks towards the front, so the plainest come first."""
        found = [(row, variant) for row, variant in every(EXCLUDED) if self.has(f"{row.name} {variant.name}")]
        found = [(row, variant) for row, variant in found if self._takes(row, variant)]
        found.sort(key=lambda pair: (pair[0].name != "SGD", pair[1].name != "lr"))
        found = found or [(row("SGD"), row("SGD").plain)]
        # Groups have their own kind of bugs, but few variants have groups: so these are drawn more often.
        grouped = [(row, variant) for row, variant in found if variant.group_arguments]
        chosen: tuple[Row, Variant] = self.one_of(*(grouped if grouped and self.chance(7) else found))
        return chosen

    def _takes(self, row: Row, variant: Variant) -> bool:
        """Return whether the optimizer takes the kind of gradients that is drawn."""
        needs = row.needs | variant.needs
        if self.sparse:
            return "sparse" in row.takes | needs and "sparse" not in variant.refuses
        wanted = {"complex"} if self.complex else set()
        return "sparse" not in needs and wanted <= row.takes - variant.refuses

    def _param(self, number: int) -> Param:
        needs = self.optimizer.needs | self.variant.needs
        name, also = self.name_of(number), self.second_name_of(number)
        frozen = self.sometimes("frozen parameters")
        all_sparse = "sparse" in needs or not self.has("sparse and dense gradients")
        if self.sparse and (all_sparse or self.chance(2)):
            return Param(name, self.one_of(*_MATRICES), dtype=self.dtype, frozen=frozen, sparse=True, also=also)
        shape = self._shape("2d" in needs)
        return Param(name, shape, self._layout(shape), self._dtype(), frozen, also=also)

    def _shape(self, matrix: bool) -> tuple[int, ...]:
        shapes = list(_MATRICES if matrix else _SHAPES)
        if not matrix:
            shapes += [()] if self.has("scalars") else []
            shapes += [(0, 3)] if self.has("empty parameters") else []
        if self.params and self.chance(3):  # with equal shapes a gradient of the wrong parameter raises no error
            return self.params[-1].shape
        shape: tuple[int, ...] = self.one_of(*shapes)
        return shape

    def _layout(self, shape: tuple[int, ...]) -> str:
        able = []
        # Fused kernels give other values if a gradient's strides differ from its parameter's.
        if "fused" in self.variant.name:
            return "plain"
        if len(shape) == 2 and all(shape):
            able += ["transposed"] if self.has("transposed parameters") else []
        if shape and all(shape):
            # The server chooses which kernels run on a parameter with gaps, and whether on a copy: only those of SGD
            # are known to give the same values.
            able += ["gaps"] if self.has("parameters with gaps") and self.optimizer.name == "SGD" else []
            able += ["shared"] if self.has("shared storage") else []
        return str(self.one_of(*["plain"] * 4, *able))

    def _dtype(self) -> str:
        if self.dtype == "float64" and self.sometimes("mixed dtypes"):
            return "float32"
        return self.dtype

    def _trainers(self) -> tuple[int | None, ...]:
        """Draw the number of trainers, and for each its worker or None."""
        count: int = self.one_of(2, 2, 3, 3, 3, 4, 1)
        if self.has("many trainers") and self.chance(16):
            return (None,) * 7
        if not self.has("trainers on other workers") or not self.chance(4):
            return (None,) * count
        return tuple([self.one_of(None, *range(self.size)) for _ in range(count)])
