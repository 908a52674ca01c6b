"""Draw for ``rpc-optimizer`` with Hypothesis. A draw is valid by construction, also while it shrinks."""

from __future__ import annotations

from dataclasses import replace

from everyrank.fixtures.optimizers import Row, Variant, row, rows
from everyrank.suites.generate.drawing import Actions, Drawing, Maker, draws_of
from everyrank.suites.rpc_optimizer import grammar as g
from everyrank.suites.rpc_optimizer.besides import MORE, PARTS
from hypothesis import strategies as st

#: Few shapes, so that equal shapes are frequent.
_SHAPES: tuple[tuple[int, ...], ...] = ((2,), (2, 3), (3,), (), (0, 3), (3, 4), (2, 1, 2))
_MATRICES: tuple[tuple[int, ...], ...] = ((2, 3), (3, 4), (4, 2))


class RpcDrawing(Drawing):
    """One draw while it is made."""

    # --- the model -----------------------------------------------------------------------------------

    def make(self) -> g.Draw:
        dtypes = ["float64", "float64", "float32"]
        self.planted = self.has("classes of the user's own") and self.chance(3)
        self.sparse = not self.planted and self._choices("sparse") != [] and self.chance(7)
        if not self.planted and not self.sparse:
            dtypes += ["bfloat16"] if self.has("bf16") else []
            dtypes += ["complex128"] if self._choices("complex128") else []
        self.dtype = self.one_of(*dtypes)
        chosen = [self._choose() for _ in range(self.one_of(1, 1, 2))]
        used = [row(optimizer.name) for optimizer in chosen]
        self.matrices = any("2d" in entry.needs for entry in used)
        # torch steps a user's class on its eager path, whatever is in the ledger of its scripted path.
        self.complete = not self.has("missing gradients") or any(optimizer.own for optimizer in chosen)
        dense = [entry for entry in used if "sparse" not in entry.needs]
        self.whole = any(not self.has(f"{entry.name} with missing gradients") for entry in dense)
        self.complete |= self.whole or self.sparse
        self.all_sparse = any("sparse" in entry.needs for entry in used)
        owners = self.one_of((1, 2, 0), (1,), (1, 2), (0,), (2,))
        self.params: list[g.Param] = []
        for _ in range(self.draw(st.integers(1, 4))):
            self.params.append(self._param(self.one_of(*owners)))
        self.optimizers = self._owning(chosen)
        return g.Draw(
            size=self.size,
            params=tuple(self.params),
            optimizers=self.optimizers,
            actions=RpcActions(self).make(),
            dtype=self.dtype,
        )

    def _choices(self, kind: str) -> list[tuple[Row, Variant]]:
        """Return optimizers and their variants that take sparse gradients, or parameters of this dtype."""
        if kind == "sparse":
            takers = [row for row in rows() if self.has(f"{row.name} with sparse gradients")]
            return [(row, row.plain) for row in takers]
        found = [(row, variant) for row in rows() for variant in g.drawn_variants(row)]
        found = [(row, variant) for row, variant in found if self.has(f"{row.name} {variant.name}")]
        if kind == "complex128":
            found = [(row, variant) for row, variant in found if self._is_complex(row, variant)]
        # Hypothesis shrinks towards the front, so the plainest come first.
        return sorted(found, key=lambda pair: (pair[0].name != "SGD", pair[1].name != "lr"))

    def _is_complex(self, row: Row, variant: Variant) -> bool:
        feature = f"{row.name} complex" if variant is row.plain else f"{row.name} complex with arguments"
        return self.has(feature) and "complex" not in variant.refuses

    def _choose(self) -> g.Optimizer:
        """Choose an optimizer, over no parameters yet."""
        if self.planted:
            return g.Optimizer((), own="planted")
        return self._with_arguments(self._choices("sparse" if self.sparse else self.dtype))

    def choose_another(self, all_trained: bool) -> g.Optimizer | None:
        """Choose one of torch's optimizers for the drawn parameters; return None if none fits."""
        choices = [
            (row, variant)
            for row, variant in self._choices(self.dtype)
            if (self.matrices or "2d" not in row.needs)
            and (all_trained or self.has(f"{row.name} with missing gradients"))
        ]
        return self._with_arguments(choices, subclasses=False) if choices else None

    def _with_arguments(self, choices: list[tuple[Row, Variant]], subclasses: bool = True) -> g.Optimizer:
        """Choose one of these, with its arguments, over no parameters yet."""
        kind = ""
        # Only few of some hundred variants are without arguments, or have subclasses: so these are drawn often.
        plain = [(row, variant) for row, variant in choices if variant.name == "defaults"]
        narrowed = [] if self.sparse else [("defaults", plain)] * 2
        if subclasses and not self.sparse and self.has("classes of the user's own"):
            narrowed.append(("subclass", [(row, variant) for row, variant in choices if row.name == "SGD"]))
        often = self.one_of(*[""] * 3, *(name for name, found in narrowed if found))
        if often:
            choices = dict(narrowed)[often]
            if often == "subclass":  # a complex gradient has no sign
                kind = "subclass" if self.dtype == "complex128" else self.one_of("subclass", "signed")
        chosen, variant = self.one_of(*choices)
        given = ["named", "named"]
        if not kind and not self.sparse:
            given += [style for style in ("positional", "explicit") if self.has(f"{chosen.name} {style}")]
        return g.Optimizer((), chosen.name, variant.name, kind, self.one_of(*given))

    def _param(self, owner: int) -> g.Param:
        shape = self.one_of(*(_MATRICES if self.matrices or self.sparse else _SHAPES))
        sparse = self.sparse and (self.all_sparse or self.one_of(True, False))
        frozen = self.has("frozen parameters") and not self.whole and self.chance(6)
        kind = "plain" if sparse else self.one_of("plain", "plain", "plain", "transposed", "rows", "same")
        twins = [
            number
            for number, param in enumerate(self.params)
            if param.owner == owner and param.same_as is None and not param.sparse
        ]
        if kind == "same" and twins:
            number = self.one_of(*twins)
            return g.Param(owner, self.params[number].shape, self.params[number].frozen, same_as=number)
        layout = kind if (kind == "rows" and shape) or (kind == "transposed" and len(shape) == 2) else "plain"
        return g.Param(owner, shape, frozen, bool(sparse), layout)

    def _owning(self, chosen: list[g.Optimizer]) -> tuple[g.Optimizer, ...]:
        """Give each optimizer its parameters, and of each tensor only one name."""
        names: dict[int, list[int]] = {}
        for number, param in enumerate(self.params):
            names.setdefault(number if param.same_as is None else param.same_as, []).append(number)
        made = []
        for number, optimizer in enumerate(chosen):
            tensors = list(names.values())
            if number or (self.has("parameters of no optimizer") and not any(other.own for other in chosen)):
                tensors = list(self.some(tensors)) if self.chance(2) else tensors
            made.append(replace(optimizer, params=tuple(self.one_of(*tensor) for tensor in tensors)))
        return tuple(made)


class RpcActions(Actions[RpcDrawing]):
    """The actions of one draw."""

    def __init__(self, drawing: RpcDrawing) -> None:
        super().__init__(drawing)
        self.trained = [number for number, param in enumerate(drawing.params) if not param.frozen]
        self.parts = [part for part in PARTS if drawing.has(f"use of {part}")]

    def makers(self) -> list[Maker]:
        makers: list[Maker] = [*[self.step] * 5, self.invalid]
        makers += self.claimed(
            {
                "contexts beside each other": [self.beside],
                "wrong contexts": [self.refused],
                "errors in constructors": [self.fail_build],
                "dropped optimizers": [self.renew],
            }
        )
        makers += [self.use] * 3 if self.parts and self.trained else []
        makers += [self.another] * 3 if self.trained and not self.d.sparse else []
        if self.d.planted:  # only a planted optimizer allows these, so they are drawn often
            makers += [self.sabotage] * 6
            makers += self.claimed({"steps at the same time": [self.together] * 2})
        return makers

    def used(self) -> tuple[int, ...]:
        """Draw the parameters of one backward."""
        if self.d.complete or not self.trained or self.d.one_of(True, False):
            return tuple(self.trained)
        return tuple(sorted(self.d.some(self.trained)))

    def by(self) -> int:
        return self.d.below(len(self.d.optimizers))

    def step(self) -> None:
        backwards = self.parted(self.used()) if self.trained else []
        empty = self.d.has("empty contexts") and not self.d.complete and self.d.chance(8)
        by = (self.by(),) if self.d.one_of(True, True, False) else (self.by(), self.by())
        again = self.d.chance(8)
        self.made.append(g.Step(() if empty else tuple(backwards), by, self.d.one_of(1, 1, 2, 4), again))

    def parted(self, used: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return one backward through all of these, or one for each of two sets of owners without the driver."""
        owners = sorted({self.d.params[number].owner for number in used})
        if len(owners) == 1 or 0 in owners or self.d.one_of(True, True, False):
            return [used]
        first = self.d.draw(st.integers(1, len(owners) - 1))
        parts = (owners[:first], owners[first:])
        return [tuple(number for number in used if self.d.params[number].owner in part) for part in parts]

    def beside(self) -> None:
        if not self.trained:
            return
        by, older, newer = (self.by(), self.by()), self.used(), self.used()
        if self.reached(by[1], newer):
            self.made.append(g.Beside(older, newer, by, self.d.chance(2)))

    def reached(self, by: int, used: tuple[int, ...]) -> bool:
        """Return whether a backward through these reaches all owners: others do not know another thread's context."""
        return self.owners(by) <= {self.d.params[number].owner for number in used}

    def owners(self, by: int) -> set[int]:
        return {self.d.params[number].owner for number in self.d.optimizers[by].params}

    def refused(self) -> None:
        self.made.append(g.Refused(self.d.one_of("unknown", "closed"), self.by()))

    def invalid(self) -> None:
        names = ["empty-list", "non-leaf"] if self.trained else ["empty-list"]
        special = [("SGD", name) for name in names if self.d.has(f"refuses {name}")]
        found = [
            (row.name, invalid.name)
            for row in rows()
            for invalid in row.invalid
            if self.d.has(f"{row.name} refuses {invalid.name}")
        ]
        # The few special cases are drawn as often as all others together.
        kinds = [kind for kind in (special, found) if kind]
        if kinds:
            self.made.append(g.Invalid(*self.d.one_of(*self.d.one_of(*kinds))))

    def sabotage(self) -> None:
        by = self.by()
        owners = sorted(self.owners(by))
        failing: tuple[int, ...] = ()
        if self.d.has("errors in steps") and self.d.one_of(True, True, False):
            failing = self.d.some(owners) if self.d.has("errors in several steps") else (self.d.one_of(*owners),)
        others = [owner for owner in owners if owner not in failing]
        slow = self.d.one_of(None, *others) if self.d.has("owners that wait") else None
        foreign = len(failing) == 1 and self.d.has("errors that cannot travel") and self.d.chance(3)
        if self.trained and (failing or slow is not None):
            self.made.append(g.Sabotage(by, tuple(sorted(failing)), slow, foreign))

    def fail_build(self) -> None:
        owned = [number for number, param in enumerate(self.d.params) if param.same_as is None]
        params = self.d.some(owned)
        self.made.append(g.FailBuild(params, self.d.params[self.d.one_of(*params)].owner))

    def together(self) -> None:
        by = (self.by(), self.by())
        first, second = ({self._tensor(number) for number in self.d.optimizers[index].params} for index in by)
        owners = {self.d.params[number].owner for number in first | second}
        # With several owners it would be undefined in which order each does the two steps.
        if len(owners) == 1 and first & second and self.reached(by[0], tuple(self.trained)):
            self.made.append(g.Together(by))

    def _tensor(self, number: int) -> int:
        same_as = self.d.params[number].same_as
        return number if same_as is None else same_as

    def use(self) -> None:
        # Several parts can be used at the same time; a closure, or another optimizer, is used alone.
        alone = [part for part in self.parts if part in MORE]
        beside = [part for part in self.parts if part not in MORE]
        kind = self.d.one_of(*(parts for parts in (beside, alone) if parts))
        self.made.append(g.Use(self.d.some(kind) if kind is beside else (self.d.one_of(*kind),), self.by()))

    def another(self) -> None:
        chosen = self.d.choose_another(all_trained=len(self.trained) == len(self.d.params))
        if chosen is not None:
            self.made.append(g.Another(replace(chosen, params=self.d.optimizers[0].params), self.d.one_of(1, 2)))

    def renew(self) -> None:
        self.made.append(g.Renew())


#: A model, optimizers and a sequence of actions, for a world of this size and a subject that claims these features.
draws = draws_of(RpcDrawing)
