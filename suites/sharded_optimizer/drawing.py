"""Draw models of ``sharded-optimizer`` with Hypothesis. A model is valid by construction, also while it shrinks."""

from __future__ import annotations

from dataclasses import replace

from everyrank.fixtures.optimizers import Row, Variant, row, rows
from everyrank.suites.moves.drawing import PREFIXES, Drawing
from everyrank.suites.sharded_optimizer.geometry import chunks
from everyrank.suites.sharded_optimizer.model import Model, Param
from hypothesis import strategies as st

#: Needs of a variant that no draw provides; a draw with tables provides sparse gradients.
_NOT_DRAWN = {"cuda", "non-leaf", "sparse"}


class ModelDrawing(Drawing):
    """One model while it is drawn."""

    def make(self) -> Model:
        self.tables = self.sometimes("sparse gradients")
        name, variant = self.one_of(*self._optimizers())
        needs = row(name).needs
        self.matrices = "2d" in needs
        self.module = self.has("modules") and self.chance(3)
        first = 8 if "no-groups" in needs or not self.has("groups") else self.one_of(8, 1, 2)
        subclass = self._subclass(name, needs)
        self.tables_only = "sparse" in needs
        count = self.draw(st.integers(1, 4))
        self.params: list[Param] = []
        for number in range(count):
            self.params.append(self._param(number))
        return Model(
            size=self.size,
            params=tuple(self.params),
            optimizer=name,
            variant=variant,
            subclass=subclass,
            dtype="float64" if self.tables else self.one_of("float64", "float64", "float32"),
            first=8 if first >= count else first,
            module=self.module,
        )

    def _optimizers(self) -> list[tuple[str, str]]:
        found = []
        for optimizer in rows():
            if "whole-tensor" in optimizer.needs and not self.has("optimizers that look at the whole tensor"):
                continue
            if "closure" in optimizer.needs and not self.has("closures"):
                continue
            if self.tables and ("closure" in optimizer.needs or "sparse" not in optimizer.needs | optimizer.takes):
                continue
            variants = [variant for variant in optimizer.variants if _drawn(optimizer, variant, self.tables)]
            found += [(optimizer.name, variant.name) for variant in variants]
        # Hypothesis shrinks towards the front, so the plainest come first.
        return sorted(found, key=lambda names: (names != ("SGD", "defaults"), names[0] != "SGD"))

    def _subclass(self, name: str, needs: frozenset[str]) -> str:
        feature = "subclasses that look at the whole tensor" if "whole-tensor" in needs else "subclasses"
        if self.tables or not self.sometimes(feature):
            return ""
        return str(self.one_of("unchanged", "signed")) if name == "SGD" else "unchanged"

    def _param(self, number: int) -> Param:
        name = f"p{number}"
        if self.module:
            name = self.one_of(*PREFIXES) + name
        frozen = self.sometimes("frozen parameters")
        table = self.tables and (self.tables_only or number == 0 or self.one_of(True, True, False))
        if table and number and self.chance(2):
            # With another shape, rows that went to the wrong table would raise an error.
            earlier = next(param for param in self.params if param.table)
            return replace(earlier, name=name, frozen=frozen, also="")
        plain = self.matrices or table
        dims = 2 if plain else self.one_of(2, 1, 2, 3)
        other = [self.draw(st.integers(1, 4)) for _ in range(dims)]
        if self.has("whole parameters") and self.chance(3):
            return replace(self._whole(name, tuple(other), frozen, plain), table=table)
        dim = self.one_of(*range(min(dims, 2)))
        tool = self.module and not (self.has("bare shards in modules") and self.chance(3))
        if tool:
            # With fewer rows torch's _shard_tensor raises on rank 0 alone, and the other ranks wait for it.
            length = self.draw(st.integers(self.size - 1, 2 * self.size + 1))
            if not self.has("ranks without a shard"):
                length = max(length, self.size)
            if table and dim == 1:
                # torch crashes if it adds sparse rows to an empty view: so each rank gets a column.
                length = self.size * max(1, length // self.size)
            cut = tuple(enumerate(chunks(length, self.size)))
        else:
            cut = self._cut()
        other[dim] = sum(length for _, length in cut)
        also = f"{name}_again" if self.sometimes("tied parameters", 2) and (tool or not self.module) else ""
        return Param(name, tuple(other), cut, dim, frozen=frozen, tool=tool, also=also, table=table)

    def _whole(self, name: str, shape: tuple[int, ...], frozen: bool, matrix: bool) -> Param:
        kind = self.one_of("plain", "plain", "view", "scalar", "empty", "transposed")
        layout = "plain"
        if kind == "view" or (kind == "transposed" and len(shape) == 2):
            layout = kind
        if kind == "scalar" and not matrix:
            shape = ()
        if kind == "empty" and not matrix:
            shape = (0, *shape[1:])
        also = f"{name}_again" if self.sometimes("tied parameters") else ""
        return Param(name, shape, layout=layout, frozen=frozen, also=also)

    def _cut(self) -> tuple[tuple[int, int], ...]:
        """Draw rank and length of each block: ranks come in any order, several times or never."""
        if self.chance(2):
            owners = list(self.draw(st.permutations(range(self.size))))
        else:
            owners = self.draw(st.lists(st.integers(0, self.size - 1), min_size=1, max_size=2 * self.size))
        if not self.has("ranks without a shard"):
            owners += [rank for rank in range(self.size) if rank not in owners]
        return tuple((owner, self.draw(st.integers(1, 3))) for owner in owners)


def _drawn(row: Row, variant: Variant, tables: bool) -> bool:
    # Fused kernels round a shard otherwise than the whole, and mispair a parameter with a gradient of other strides.
    fused = variant.arguments.get("fused", False)
    needs = (row.needs | variant.needs) - ({"sparse"} if tables else set())
    refused = tables and "sparse" in variant.refuses
    return not needs & _NOT_DRAWN and not variant.group_arguments and not fused and not refused
