"""Draw for ``sharded-optimizer`` with Hypothesis. A draw is valid by construction, also while it shrinks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from everyrank.fixtures.optimizers import Row, Variant, row, rows
from everyrank.suites.generate.drawing import Actions, Drawing, Maker, draws_of
from everyrank.suites.sharded_optimizer import grammar as g
from everyrank.suites.sharded_optimizer.geometry import chunks
from hypothesis import strategies as st

#: Prefixes of the names of parameters in a module.
_PREFIXES = ("", "inner.", "inner.deep.", "other.")

#: Values of options that are changed by hand.
_OPTIONS = {"lr": (0.02, 0.3), "weight_decay": (0.0, 0.2), "maximize": (True, False), "betas": ((0.5, 0.9),)}

#: Needs of a variant that no draw provides; a draw with tables provides sparse gradients.
_NOT_DRAWN = {"cuda", "non-leaf", "sparse"}

#: Not drawn for a model with tables: a sparse gradient has no defined norm, and closures make dense gradients.
_DENSE = {"closures", "clipping"}


class ShardedDrawing(Drawing):
    """One draw while it is made."""

    # --- the model -----------------------------------------------------------------------------------

    def make(self) -> g.Draw:
        self.tables = self.sometimes("sparse gradients")
        name, variant = self.one_of(*self._optimizers())
        needs = row(name).needs
        self.matrices = "2d" in needs
        self.closures_only = "closure" in needs
        self.module = self.has("modules") and self.chance(3)
        first = 8 if "no-groups" in needs or not self.has("groups") else self.one_of(8, 1, 2)
        subclass = self._subclass(name, needs)
        self.whole_tensor = bool(subclass) or "whole-tensor" in needs
        self.tables_only = "sparse" in needs
        count = self.draw(st.integers(1, 4))
        self.params: list[g.Param] = []
        for number in range(count):
            self.params.append(self._param(number))
        first = min(first, count)
        self.optimizer, self.first = name, first
        return g.Draw(
            size=self.size,
            params=tuple(self.params),
            optimizer=name,
            variant=variant,
            subclass=subclass,
            dtype="float64" if self.tables else self.one_of("float64", "float64", "float32"),
            first=8 if first == count else first,
            module=self.module,
            actions=ShardedActions(self).make(),
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

    def _param(self, number: int) -> g.Param:
        name = f"p{number}"
        if self.module:
            name = self.one_of(*_PREFIXES) + name
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
        return g.Param(name, tuple(other), cut, dim, frozen=frozen, tool=tool, also=also, table=table)

    def _whole(self, name: str, shape: tuple[int, ...], frozen: bool, matrix: bool) -> g.Param:
        kind = self.one_of("plain", "plain", "view", "scalar", "empty", "transposed")
        layout = "plain"
        if kind == "view" or (kind == "transposed" and len(shape) == 2):
            layout = kind
        if kind == "scalar" and not matrix:
            shape = ()
        if kind == "empty" and not matrix:
            shape = (0, *shape[1:])
        also = f"{name}_again" if self.sometimes("tied parameters") else ""
        return g.Param(name, shape, layout=layout, frozen=frozen, also=also)

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


class ShardedActions(Actions[ShardedDrawing]):
    """The actions of one draw."""

    MOST = 10

    def __init__(self, drawing: ShardedDrawing) -> None:
        super().__init__(drawing)
        self.frozen = {number for number, param in enumerate(drawing.params) if param.frozen}
        self.handed = drawing.first  # how many parameters the optimizer has
        self.groups = 1
        self.saved = False
        self.own = False  # whether gradients differ between ranks; then only one step is defined

    def make(self) -> tuple[g.Action, ...]:
        # Only some models allow these, so they are drawn often if the model does.
        for maker, able in ((self.names, self.d.module), (self.add_group, self.handed < len(self.d.params))):
            if able and self.d.chance(2):
                maker()
        return super().make()

    def indices(self, count: int) -> Iterator[int]:
        # Hypothesis's lists are short most of the time; a sequence that needs four actions would seldom be drawn.
        for _ in range(self.d.draw(st.integers(1, self.MOST))):
            yield self.d.below(count)

    def makers(self) -> list[Maker]:
        by_feature: dict[str, list[Maker]] = {
            "zero_grad": [self.clear, self.give_and_clear],
            "closures": [self.step_with_closure],
            "clipping": [self.clip, self.give_and_clip],
            "groups": [self.add_group, self.add_group],
            "frozen parameters": [self.freeze],
            "saves and loads": [self.save, self.load, self.train_save_and_load, self.train_save_and_load],
            "modules": [self.names],
            "parts besides the step": [self.use],
            "errors": [self.fail],
        }
        able = {name: makers for name, makers in by_feature.items() if not (self.d.tables and name in _DENSE)}
        return [self.train, self.train, self.train, self.give, self.step, self.set_option, *self.claimed(able)]

    def give(self) -> None:
        if self.d.closures_only:
            return
        trained = [number for number in range(len(self.d.params)) if number not in self.frozen]
        if self.d.has("missing gradients") and self.d.chance(3):
            missing = self.d.draw(st.sets(st.integers(0, len(self.d.params) - 1), max_size=3))
            trained = [number for number in trained if number not in missing]
        self.own = any(self.d.params[number].cut is None for number in trained) and self.d.one_of(True, False)
        dense = tuple(number for number in trained if not self.d.params[number].table)
        self.made.append(g.Give(dense, self.own, tuple(self._rows(n) for n in trained if n not in dense)))

    def _rows(self, number: int) -> g.Rows:
        """Draw rows of one table. In a sharded table all ranks look up the same: each gets its own rows' gradient."""
        param = self.d.params[number]
        row = st.integers(0, param.shape[0] - 1)
        unique = not self.d.has("repeated rows")
        ranks = self.d.size if self.own and param.cut is None else 1
        looked_up = [self.d.draw(st.lists(row, max_size=4, unique=unique)) for _ in range(ranks)]
        return g.Rows(number, tuple(tuple(sorted(rows) if unique else rows) for rows in looked_up))

    def step(self) -> None:
        if self.d.closures_only:
            self.step_with_closure()
        elif not self.own:
            self.made.append(g.Step())

    def train(self) -> None:
        if self.d.closures_only:
            self.step_with_closure()
            return
        self.give()
        self.made.append(g.Step())

    def step_with_closure(self) -> None:
        if self.d.has("closures"):
            self.own = False
            self.made.append(g.Step(closure=True))

    def clear(self) -> None:
        if self.handed == len(self.d.params) and not self.own:  # other gradients would stay as they are
            self.made.append(g.Clear(self.d.one_of(None, False, True)))

    def give_and_clear(self) -> None:
        """Set gradients, and clear them."""
        self.give()
        self.clear()

    def give_and_clip(self) -> None:
        """Set gradients, and clip them."""
        self.give()
        self.clip()

    def clip(self) -> None:
        if not self.own:
            self.made.append(
                g.Clip(self.d.one_of(0.5, 2.0, 100.0), self.d.one_of(2.0, float("inf"), 1.0, float("inf"), 3.0))
            )

    def add_group(self) -> None:
        left = len(self.d.params) - self.handed
        if left:
            count = self.d.draw(st.integers(1, left))
            decays = "weight_decay" in _arguments(self.d.optimizer) and not self.d.tables
            decay = self.d.one_of(None, 0.2) if decays else None
            self.made.append(g.AddGroup(count, self.d.one_of(0.3, 0.02), decay))
            self.handed += count
            self.groups += 1
            self.saved = False

    def set_option(self) -> None:
        refused = {"weight_decay"} if self.d.tables else set()  # no optimizer adds it to a sparse gradient
        names = [name for name in _OPTIONS if name in _arguments(self.d.optimizer) - refused]
        name = self.d.one_of(*names)
        group = self.d.below(self.groups)
        self.made.append(g.SetOption(group, name, self.d.one_of(*_OPTIONS[name])))

    def freeze(self) -> None:
        number = self.d.below(len(self.d.params))
        self.frozen ^= {number}
        self.made.append(g.Freeze(number, number in self.frozen))

    def save(self) -> None:
        self.saved = True
        self.made.append(g.Save())

    def load(self) -> None:
        if self.saved:
            fresh = self.d.chance(2)
            self.own = self.own and not fresh
            # The state of an optimizer that flattens its parameters, as LBFGS does, depends on their order.
            self.made.append(g.Load(fresh, fresh and not self.d.closures_only and self.d.chance(2)))

    def train_save_and_load(self) -> None:
        """Save a state that is not empty, and load it."""
        self.train()
        self.save()
        self.load()

    def names(self) -> None:
        if self.d.module:
            prefix = self.d.one_of("", "model") if self.d.has("prefixes") else ""
            recurse = not self.d.has("names without recursion") or self.d.one_of(True, False)
            self.made.append(g.Names(prefix, recurse))

    def use(self) -> None:
        """Set gradients, and use a part that may step, or step a copy."""
        if not self.d.closures_only:
            self.give()
            if not self.own:
                self.made.append(g.Use(self.d.one_of("hooks", "defaults", "repr", "copy")))

    def fail(self) -> None:
        kinds = ["construction"]
        if self.d.has("errors in a class of the user's own"):
            kinds.append("step")
        # If a subject raises on one rank only, the others would wait for its gradient of a whole tensor.
        cut = all(param.cut is not None for param in self.d.params) and not self.d.whole_tensor
        if self.d.has("errors in closures") and cut:
            kinds.append("closure")
        during = self.d.one_of(*kinds)
        self.made.append(g.Fail(self.d.below(self.d.size), during))
        self.handed, self.groups, self.saved, self.own = self.d.first, 1, False, False


def _arguments(optimizer: str) -> set[str]:
    kind: Any = row(optimizer).optimizer
    return set(inspect.signature(kind).parameters)


#: A model, an optimizer and a sequence of actions, for a world of this size and a subject that claims these features.
draws = draws_of(ShardedDrawing)
