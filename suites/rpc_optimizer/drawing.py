"""Drawing for ``rpc-optimizer``, with Hypothesis. A draw is valid by construction, also while it shrinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from everyrank.fixtures.optimizers import Row, Variant, row, rows
from everyrank.suites.generate.drawing import Drawing, draws_of
from everyrank.suites.rpc_optimizer import grammar as g
from everyrank.suites.rpc_optimizer.besides import MORE, PARTS
from hypothesis import strategies as st

#: Few, so that equal ones are frequent.
_SHAPES: tuple[tuple[int, ...], ...] = ((2,), (2, 3), (3,), (), (0, 3), (3, 4), (2, 1, 2))
_MATRICES: tuple[tuple[int, ...], ...] = ((2, 3), (3, 4), (4, 2))


class _Drawing(Drawing):
    """One draw while it is made."""

    def some(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """Some of these, at least one, in any order."""
        shuffled = self.draw(st.permutations(list(values)))
        return tuple(shuffled[: self.draw(st.integers(1, len(shuffled)))])

    # --- the model -----------------------------------------------------------------------------------

    def make(self) -> g.Draw:
        dtypes = ["float64", "float64", "float32"]
        self.planted = self.has("classes of the user's own") and self.one_of(False, False, True)
        self.sparse = not self.planted and self._choices("sparse") != [] and self.one_of(*[False] * 6, True)
        if not self.planted and not self.sparse:
            dtypes += ["bfloat16"] if self.has("bf16") else []
            dtypes += ["complex128"] if self._choices("complex128") else []
        self.dtype = self.one_of(*dtypes)
        chosen = [self._choose() for _ in range(self.one_of(1, 1, 2))]
        used = [row(each.name) for each in chosen]
        self.matrices = any("2d" in each.needs for each in used)
        # torch steps a class of the user's own on its eager path, whatever the ledger of its scripted path says.
        self.complete = not self.has("missing gradients") or any(each.own for each in chosen)
        dense = [each for each in used if "sparse" not in each.needs]
        self.whole = any(not self.has(f"{each.name} with missing gradients") for each in dense)
        self.complete |= self.whole or self.sparse
        self.all_sparse = any("sparse" in each.needs for each in used)
        owners = self.one_of((1, 2, 0), (1,), (1, 2), (0,), (2,))
        self.params: list[g.Param] = []
        for _ in range(self.draw(st.integers(1, 4))):
            self.params.append(self._param(self.one_of(*owners)))
        self.optimizers = self._owning(chosen)
        return g.Draw(
            size=self.size,
            params=tuple(self.params),
            optimizers=self.optimizers,
            actions=tuple(_Actions(self).make()),
            dtype=self.dtype,
        )

    def _choices(self, what: str) -> list[tuple[Row, Variant]]:
        """Optimizers and their variants that take such gradients, or parameters of such a dtype."""
        if what == "sparse":
            takers = [each for each in rows() if self.has(f"{each.name} with sparse gradients")]
            return [(each, each.plain) for each in takers]
        found = [(each, variant) for each in rows() for variant in g.drawn_variants(each)]
        found = [(each, variant) for each, variant in found if self.has(f"{each.name} {variant.name}")]
        if what == "complex128":
            found = [(each, variant) for each, variant in found if self._is_complex(each, variant)]
        # Shrinking goes to the front: the plainest first.
        return sorted(found, key=lambda one: (one[0].name != "SGD", one[1].name != "lr"))

    def _is_complex(self, row: Row, variant: Variant) -> bool:
        feature = f"{row.name} complex" if variant is row.plain else f"{row.name} complex with arguments"
        return self.has(feature) and "complex" not in variant.refuses

    def _choose(self) -> g.Optimizer:
        """An optimizer over no parameters yet."""
        if self.planted:
            return g.Optimizer((), own="planted")
        return self._with_arguments(self._choices("sparse" if self.sparse else self.dtype))

    def choose_another(self, all_trained: bool) -> g.Optimizer | None:
        """An optimizer of torch's own for the parameters that there are, or None if none fits."""
        choices = [
            (each, variant)
            for each, variant in self._choices(self.dtype)
            if (self.matrices or "2d" not in each.needs)
            and (all_trained or self.has(f"{each.name} with missing gradients"))
        ]
        return self._with_arguments(choices, subclasses=False) if choices else None

    def _with_arguments(self, choices: list[tuple[Row, Variant]], subclasses: bool = True) -> g.Optimizer:
        """One of these, with its arguments, over no parameters yet."""
        kind = ""
        # Of some hundred variants few have no arguments, or are those of which a subclass is drawn: these come often.
        narrowed = [] if self.sparse else [("defaults", [one for one in choices if one[1].name == "defaults"])] * 2
        if subclasses and not self.sparse and self.has("classes of the user's own"):
            narrowed.append(("subclass", [one for one in choices if one[0].name == "SGD"]))
        often = self.one_of(*[""] * 3, *(name for name, found in narrowed if found))
        if often:
            choices = dict(narrowed)[often]
            if often == "subclass":  # a complex gradient has no sign
                kind = "subclass" if self.dtype == "complex128" else self.one_of("subclass", "signed")
        chosen, variant = self.one_of(*choices)
        given = ["named", "named"]
        if not kind and not self.sparse:
            given += [each for each in ("positional", "explicit") if self.has(f"{chosen.name} {each}")]
        return g.Optimizer((), chosen.name, variant.name, kind, self.one_of(*given))

    def _param(self, owner: int) -> g.Param:
        shape = self.one_of(*(_MATRICES if self.matrices or self.sparse else _SHAPES))
        sparse = self.sparse and (self.all_sparse or self.one_of(True, False))
        frozen = self.has("frozen parameters") and not self.whole and self.one_of(*[False] * 5, True)
        kind = "plain" if sparse else self.one_of("plain", "plain", "plain", "transposed", "rows", "same")
        twins = [
            number
            for number, each in enumerate(self.params)
            if each.owner == owner and each.same_as is None and not each.sparse
        ]
        if kind == "same" and twins:
            number = self.one_of(*twins)
            return g.Param(owner, self.params[number].shape, self.params[number].frozen, same_as=number)
        layout = kind if (kind == "rows" and shape) or (kind == "transposed" and len(shape) == 2) else "plain"
        return g.Param(owner, shape, bool(frozen), bool(sparse), layout)

    def _owning(self, chosen: list[g.Optimizer]) -> tuple[g.Optimizer, ...]:
        """Give each optimizer its parameters; of one tensor only one name."""
        names: dict[int, list[int]] = {}
        for number, param in enumerate(self.params):
            names.setdefault(number if param.same_as is None else param.same_as, []).append(number)
        made = []
        for number, each in enumerate(chosen):
            tensors = list(names.values())
            if number or (self.has("parameters of no optimizer") and not any(other.own for other in chosen)):
                tensors = list(self.some(tensors)) if self.one_of(False, True) else tensors
            of = tuple(self.one_of(*tensor) for tensor in tensors)
            made.append(g.Optimizer(of, each.name, each.variant, each.own, each.given))
        return tuple(made)


class _Actions:
    """The actions of one draw: kinds are drawn first, and what makes no sense for the model is left out."""

    def __init__(self, drawing: _Drawing) -> None:
        self.d = drawing
        self.trained = [number for number, param in enumerate(drawing.params) if not param.frozen]
        self.made: list[g.Action] = []

    def make(self) -> list[g.Action]:
        kinds: list[Callable[[], None]] = [self.step] * 5
        kinds += [self.invalid]
        for feature, maker in {
            "contexts beside each other": self.beside,
            "wrong contexts": self.refused,
            "errors in constructors": self.fail_build,
            "dropped optimizers": self.renew,
        }.items():
            kinds += [maker] if self.d.has(feature) else []
        self.parts = [part for part in PARTS if self.d.has(f"use of {part}")]
        kinds += [self.use] * 3 if self.parts and self.trained else []
        kinds += [self.another] * 3 if self.trained and not self.d.sparse else []
        if self.d.planted:  # what only some models can show comes often where the model can
            kinds += [self.sabotage] * 6
            kinds += [self.together] * 2 if self.d.has("steps at the same time") else []
        for index in self.d.draw(st.lists(st.sampled_from(range(len(kinds))), min_size=1, max_size=6)):
            kinds[index]()
        return self.made

    def used(self) -> tuple[int, ...]:
        """The parameters of one backward."""
        if self.d.complete or not self.trained or self.d.one_of(True, False):
            return tuple(self.trained)
        return tuple(sorted(self.d.some(self.trained)))

    def by(self) -> int:
        return int(self.d.draw(st.integers(0, len(self.d.optimizers) - 1)))

    def step(self) -> None:
        backwards = self.parted(self.used()) if self.trained else []
        empty = self.d.has("empty contexts") and not self.d.complete and self.d.one_of(*[False] * 7, True)
        by = (self.by(),) if self.d.one_of(True, True, False) else (self.by(), self.by())
        again = self.d.one_of(*[False] * 7, True)
        self.made.append(g.Step(() if empty else tuple(backwards), by, self.d.one_of(1, 1, 2, 4), again))

    def parted(self, used: tuple[int, ...]) -> list[tuple[int, ...]]:
        """One backward through all of these, or one for each of two sets of owners, of which the driver is none."""
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
            self.made.append(g.Beside(older, newer, by, self.d.one_of(False, True)))

    def reached(self, by: int, used: tuple[int, ...]) -> bool:
        """Whether a backward through these comes to all owners: others do not know a context of another thread."""
        owners = {self.d.params[number].owner for number in self.d.optimizers[by].of}
        return owners <= {self.d.params[number].owner for number in used}

    def refused(self) -> None:
        self.made.append(g.Refused(self.d.one_of("unknown", "closed"), self.by()))

    def invalid(self) -> None:
        names = ["empty-list", "non-leaf"] if self.trained else ["empty-list"]
        special = [("SGD", name) for name in names if self.d.has(f"refuses {name}")]
        found = [
            (each.name, invalid.name)
            for each in rows()
            for invalid in each.invalid
            if self.d.has(f"{each.name} refuses {invalid.name}")
        ]
        # A few among many: they come as often as all others together.
        kinds = [kind for kind in (special, found) if kind]
        if kinds:
            self.made.append(g.Invalid(*self.d.one_of(*self.d.one_of(*kinds))))

    def sabotage(self) -> None:
        by = self.by()
        owners = sorted({self.d.params[number].owner for number in self.d.optimizers[by].of})
        failing: tuple[int, ...] = ()
        if self.d.has("errors in steps") and self.d.one_of(True, True, False):
            failing = self.d.some(owners) if self.d.has("errors in several steps") else (self.d.one_of(*owners),)
        others = [owner for owner in owners if owner not in failing]
        slow = self.d.one_of(None, *others) if self.d.has("owners that wait") else None
        foreign = len(failing) == 1 and self.d.has("errors that cannot travel") and self.d.one_of(False, False, True)
        if self.trained and (failing or slow is not None):
            self.made.append(g.Sabotage(by, tuple(sorted(failing)), slow, bool(foreign)))

    def fail_build(self) -> None:
        owned = [number for number, param in enumerate(self.d.params) if param.same_as is None]
        of = self.d.some(owned)
        self.made.append(g.FailBuild(of, self.d.params[self.d.one_of(*of)].owner))

    def together(self) -> None:
        by = (self.by(), self.by())
        tensors = [{self._tensor(number) for number in self.d.optimizers[each].of} for each in by]
        owners = {self.d.params[number].owner for number in tensors[0] | tensors[1]}
        # With several owners the order in which each makes the two steps would be open.
        if len(owners) == 1 and tensors[0] & tensors[1] and self.reached(by[0], tuple(self.trained)):
            self.made.append(g.Together(by))

    def _tensor(self, number: int) -> int:
        same_as = self.d.params[number].same_as
        return number if same_as is None else same_as

    def use(self) -> None:
        # Of several at the same time each is seen; a closure, or another optimizer, is used alone.
        alone = [part for part in self.parts if part in MORE]
        beside = [part for part in self.parts if part not in MORE]
        kind = self.d.one_of(*(parts for parts in (beside, alone) if parts))
        self.made.append(g.Use(self.d.some(kind) if kind is beside else (self.d.one_of(*kind),), self.by()))

    def another(self) -> None:
        chosen = self.d.choose_another(all_trained=len(self.trained) == len(self.d.params))
        if chosen is not None:
            self.made.append(g.Another(replace(chosen, of=self.d.optimizers[0].of), self.d.one_of(1, 2)))

    def renew(self) -> None:
        self.made.append(g.Renew())


#: A model, optimizers and a sequence of actions, for a world of this size and a subject that claims these features.
draws = draws_of(_Drawing)
