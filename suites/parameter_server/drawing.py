"""Draw for ``parameter-server`` with Hypothesis. A draw is valid by construction, also while it shrinks."""

from __future__ import annotations

from typing import Any

from everyrank.fixtures.optimizers import Row, Variant, every, row
from everyrank.suites.generate.drawing import Actions, Drawing, Maker, draws_of
from everyrank.suites.parameter_server import grammar as g
from everyrank.suites.parameter_server import wrong_gradients
from everyrank.suites.parameter_server.points import EXCLUDED
from hypothesis import strategies as st

#: Few shapes, so that equal shapes are frequent.
_SHAPES: tuple[tuple[int, ...], ...] = ((2,), (2, 3), (3,), (3, 2), (4, 3), (2, 1, 2))
_MATRICES: tuple[tuple[int, ...], ...] = ((2, 3), (3, 2), (4, 3))

#: How many lines of a server a report runs through, and how many of its update: beyond them no report stops.
_LINES, _LINES_OF_UPDATE = 48, 24


class ServerDrawing(Drawing):
    """One draw while it is made."""

    def make(self) -> g.Draw:
        self.sparse = self.has("sparse gradients") and self.chance(8)
        self.complex = not self.sparse and self.has("complex parameters") and self.chance(10)
        self.optimizer, self.variant = self._choose()
        self.dtype = "complex128" if self.complex else "float64"
        if not self.complex and self.has(f"{self.optimizer.name} in float32") and self.chance(5):
            self.dtype = "float32"
        self.params: list[g.Param] = []
        for number in range(self.draw(st.integers(1, 4))):
            self.params.append(self._param(number))
        self.trainers = self._trainers()
        self.expires = self.has("expired rounds") and self.chance(5)
        self.non_finite = self.has("values that are not finite") and self.chance(4)
        return g.Draw(
            size=self.size,
            params=tuple(self.params),
            trainers=self.trainers,
            actions=ServerActions(self).make(),
            optimizer=self.optimizer.name,
            variant=self.variant.name,
            non_finite=self.non_finite,
            expires=self.expires,
            keeps=self.has("answers that are kept or changed") and self.chance(3),
            buffer=self.sometimes("buffers"),
        )

    # --- the model -----------------------------------------------------------------------------------

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

    def _param(self, number: int) -> g.Param:
        needs = self.optimizer.needs | self.variant.needs
        name = self.one_of("", "", "inner.", "inner.deep.", "other.") + f"p{number}"
        also = f"{self.one_of('', 'other.')}p{number}_again" if self.sometimes("tied parameters") else ""
        frozen = self.sometimes("frozen parameters")
        all_sparse = "sparse" in needs or not self.has("sparse and dense gradients")
        if self.sparse and (all_sparse or self.chance(2)):
            return g.Param(name, self.one_of(*_MATRICES), dtype=self.dtype, frozen=frozen, sparse=True, also=also)
        shape = self._shape("2d" in needs)
        return g.Param(name, shape, self._layout(shape), self._dtype(), frozen, also=also)

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


class ServerActions(Actions[ServerDrawing]):
    """The actions of one draw."""

    def __init__(self, drawing: ServerDrawing) -> None:
        super().__init__(drawing)
        self.count = len(drawing.trainers)
        self.near = [number for number, worker in enumerate(drawing.trainers) if worker is None]
        self.trained = [number for number, param in enumerate(drawing.params) if not param.frozen]
        self.dense = [number for number in self.trained if not drawing.params[number].sparse]

    def make(self) -> tuple[g.Action, ...]:
        return super().make() or (g.Round(tuple(range(self.count))),)

    def makers(self) -> list[Maker]:
        makers: list[Maker] = [self.rounds] * 3
        makers += [self.missing] * 3 if self._may_miss() else []
        makers += [self.refused] * 3
        makers += [self.taken] * 4 if self.d.non_finite else []
        if self.d.expires:
            return makers + [self.expire] * 4
        # These need a time at which each report comes, so the round must stay open.
        makers += [self.spoiled] * 2
        return makers + self.claimed(
            {
                "reports that meet": [self.meet] * 3,
                "reports during updates": [self.overlap] * 2,
                "reports during answers": [self.at_once] * 2,
            }
        )

    def _may_miss(self) -> bool:
        name = self.d.optimizer.name
        own = self.d.has(f"{name} with missing gradients") or "sparse" in self.d.optimizer.needs
        return bool(self.trained) and self.d.has("missing gradients") and own

    def order(self) -> tuple[int, ...]:
        return tuple(self.d.draw(st.permutations(range(self.count))))

    def add(self, **more: Any) -> None:
        self.made.append(g.Round(self.order(), **more))

    def rounds(self) -> None:
        self.add(times=self.d.one_of(1, 2, 4), large=self.d.has("large gradients") and self.d.chance(4))

    def missing(self) -> None:
        """Leave out the gradients of some parameters, for some trainers or for all."""
        params = self.d.some(self.trained)
        trainers = tuple(range(self.count)) if self.d.has("missing gradients of all") and self.d.chance(2) else ()
        trainers = trainers or self.d.some(range(self.count))
        if len(trainers) == self.count and not self.d.has("missing gradients of all"):
            trainers = trainers[1:]
        pairs = sorted((trainer, param) for trainer in trainers for param in params)
        self.add(times=self.d.one_of(1, 2), missing=tuple(pairs))

    def refused(self) -> None:
        """Add one or two wrong reports, each before the trainer's own."""
        order = self.order()
        wrong = [self._wrong(order) for _ in range(self.d.one_of(1, 1, 2))]
        found = sorted((report for report in wrong if report is not None), key=lambda report: report.before)
        if found:
            self.made.append(g.Round(order, wrong=tuple(found)))

    def _wrong(self, order: tuple[int, ...]) -> g.Wrong | None:
        position = self.d.below(self.count)
        before = self.d.draw(st.integers(0, position))
        in_list = [(name, 0) for name in wrong_gradients.ALL if self._refuses(name)]
        in_gradient = [
            (name, number) for number in self.dense for name in wrong_gradients.ONE if self._applies(name, number)
        ]
        kinds = [kind for kind in (in_gradient, in_gradient, in_list) if kind]
        if not kinds:
            return None
        defect, param = self.d.one_of(*self.d.one_of(*kinds))
        return g.Wrong(order[position], defect, param, before)

    def _refuses(self, name: str) -> bool:
        return self.d.has(f"refuses {name}") and not (self.d.non_finite and name in wrong_gradients.NOT_FINITE)

    def _applies(self, name: str, number: int) -> bool:
        param = self.d.params[number]
        return self._refuses(name) and wrong_gradients.is_wrong(name, param.shape, param.dtype)

    def taken(self) -> None:
        """Add a value that is not finite, which the server takes."""
        able = [
            (name, number)
            for number in self.dense
            for name in wrong_gradients.NOT_FINITE
            if wrong_gradients.is_wrong(name, self.d.params[number].shape, self.d.params[number].dtype)
        ]
        if able:
            defect, param = self.d.one_of(*able)
            self.add(taken=(g.Wrong(self.d.below(self.count), defect, param),))

    def spoiled(self) -> None:
        """Let a trainer in the server's process overwrite tensors: other trainers only have copies."""
        near = [number for number, worker in enumerate(self.d.trainers) if worker in (None, 0)]
        spoils = ["answer"] if self.d.has("answers that are kept or changed") else []
        spoils += ["gradients"] if self.d.has("gradients changed once answered") else []
        if not near:
            return
        spoiler = self.d.one_of(*near)
        # RPC itself reads gradients until they are sent.
        spoils += ["reported"] if self.d.has("gradients changed once reported") and spoiler in self.near else []
        if spoils:
            self.add(times=self.d.one_of(1, 2), spoiler=spoiler, spoils=self.d.one_of(*spoils))

    def expire(self) -> None:
        if self.count > 1:
            reporters = self.order()[: self.d.draw(st.integers(1, self.count - 1))]
            self.made.append(g.Expire(reporters))

    # --- reports that meet others ---------------------------------------------------------------------

    def _beginning(self, count: int) -> tuple[int, ...]:
        """Draw an order that begins with this many near trainers."""
        first = tuple(self.d.draw(st.permutations(self.near)))[:count]
        return (*first, *(number for number in self.order() if number not in first))

    def meet(self) -> None:
        if len(self.near) < 2:
            return
        order = self._beginning(2)
        pair, others = order[:2], order[2:]
        first = self.d.draw(st.integers(0, len(others)))
        line = self.d.draw(st.integers(0, _LINES))
        self.made.append(g.Meet((*others[:first], *pair, *others[first:]), first, line))

    def overlap(self) -> None:
        if len(self.near) < 2:
            return
        last, late, *others = self._beginning(2)
        position = self.d.draw(st.integers(0, len(others)))
        line = self.d.one_of(0, self.d.draw(st.integers(1, _LINES_OF_UPDATE)))
        self.made.append(g.Overlap((*others[:position], late, *others[position:], last), late, line))

    def at_once(self) -> None:
        if self.near and self.count > 1:
            self.made.append(g.AtOnce(self.order(), self.d.one_of(*self.near)))


#: A server and a sequence of actions, for a world of this size and a subject that claims these features.
draws = draws_of(ServerDrawing)
