"""Draw for ``replicate`` with Hypothesis. A draw is valid by construction, also while it shrinks."""

from __future__ import annotations

from everyrank.suites.generate.drawing import Actions, Drawing, Maker, draws_of
from everyrank.suites.replicate import grammar as g
from hypothesis import strategies as st

#: Prefixes of parameter names: the whole module, or a submodule that may be replicated or ignored on its own.
_PREFIXES = ("", "inner.", "inner.deep.", "other.")

#: Options of the subject, each with the feature that allows it.
_OPTIONS = {
    "small-buckets": "small buckets",
    "bucket-view": "bucket views",
    "static-graph": "static graphs",
    "device": "devices",
    "own-buffers": "own buffers",
}

#: The shape of a large parameter: more than one chunk of 2**20 elements, and not a multiple of it.
_LARGE = (2**20 + 3,)


class ReplicateDrawing(Drawing):
    """One draw while it is made."""

    LEFT_OUT = 4

    def make(self) -> g.Draw:
        options = [option for option, feature in _OPTIONS.items() if self.has(feature)]
        self.apart = self.sometimes("submodules")
        self.ignored = "" if self.apart or not self.sometimes("ignored modules") else self.one_of("inner", "other")
        self.option = "" if self.apart or self.ignored else self.one_of(*[""] * 5, *options)
        self.params: list[g.Param] = []
        for number in range(self.draw(st.integers(1, 4))):
            self.params.append(self._param(number))
        self.buffers = self._buffers()
        self.optimizer = self.one_of("SGD", "SGD", "momentum", "Adam")
        if any(param.layout == "embedding" for param in self.params):
            self.optimizer = "SGD"  # the others refuse sparse gradients
        count = len(self.params)
        first = min(self.one_of(8, 8, 1, 2), count)
        self.first = 8 if first == count else first
        return g.Draw(
            size=self.size,
            params=tuple(self.params),
            buffers=self.buffers,
            optimizer=self.optimizer,
            first=self.first,
            option=self.option,
            apart=self.apart,
            ignored=self.ignored,
            equal_at_once=self.has("values as they are built"),
            actions=ReplicateActions(self).make(),
        )

    # --- the model -----------------------------------------------------------------------------------

    def _param(self, number: int) -> g.Param:
        name = f"p{number}"
        if self.apart or (self.ignored and not number):
            name = (self.ignored + "." if self.ignored else self.one_of(*_PREFIXES[1:])) + name
        elif self.chance(2):
            name = self.one_of(*_PREFIXES) + name
        frozen = self.sometimes("frozen parameters")
        also = ""
        if not self.apart and not self.ignored and self.sometimes("tied parameters"):
            also = f"{self.one_of('', 'other.')}p{number}_again"
        shape = tuple(self.draw(st.lists(st.integers(1, 3), max_size=3)))
        if self.params and self.chance(3):
            shape = self.params[-1].shape  # with equal shapes a gradient of the wrong parameter raises no error
        layout = self._layout()
        if layout == "embedding":
            return g.Param(name, (3, 2), layout, frozen=frozen, also=also)
        dtype = "float64"
        if self.sometimes("mixed dtypes"):
            dtype = self.one_of("float32", "complex128") if self.has("complex parameters") else "float32"
        if layout == "large":
            return g.Param(name, _LARGE, frozen=frozen)
        if layout == "empty":
            return g.Param(name, (0, *shape[1:]), dtype=dtype, frozen=frozen, also=also)
        if layout == "transposed":
            # With a side of 1 torch's broadcast raises: docs/findings/ddp.md.
            shape = (*(side for side in shape if side > 1), 2, 3)[:2]
        if layout == "gaps":
            shape = shape or (2,)
        return g.Param(name, shape, layout, dtype, frozen, also)

    def _layout(self) -> str:
        layouts = {
            "transposed": "transposed parameters",
            "gaps": "parameters with gaps",
            "shared": "shared storage",
            "embedding": "sparse gradients",
        }
        able = [layout for layout, feature in layouts.items() if self.has(feature)]
        if self.has("large parameters") and self.chance(25):
            return "large"
        return str(self.one_of(*["plain"] * 6, "empty", *able))

    def _buffers(self) -> tuple[g.Buffer, ...]:
        if self.apart or not self.has("buffers") or not self.chance(3):
            return ()
        dtypes = self.draw(
            st.lists(st.sampled_from(("float64", "int64", "bool", "bfloat16")), min_size=1, max_size=2)
        )
        return tuple(g.Buffer(f"b{number}", dtype, self.sometimes("buffers")) for number, dtype in enumerate(dtypes))


class ReplicateActions(Actions[ReplicateDrawing]):
    """The actions of one draw."""

    MOST = 10

    def __init__(self, drawing: ReplicateDrawing) -> None:
        super().__init__(drawing)
        self.frozen = {number for number, param in enumerate(drawing.params) if param.frozen}
        self.static = drawing.option == "static-graph"
        self.handed = drawing.first
        self.pending = False  # gradients are not averaged yet and differ between ranks
        self.trained = False
        self.quiet = False  # after the last forward DDP sends no buffers
        self.saved = False

    def make(self) -> tuple[g.Action, ...]:
        return super().make() or (g.Backward(),)

    def makers(self) -> list[Maker]:
        makers: list[Maker] = [self.backward, self.backward, self.backward, self.train, self.train]
        makers += [self.step, self.clear, self.give, self.set_rate, self.save_and_load, self.save_and_load]
        makers += self.claimed(
            {
                "backwards without sync": [self.accumulate, self.accumulate],
                "unused parameters": [self.use_some, self.use_some],
                "thawed parameters": [self.freeze, self.freeze],
                "replaced parameters": [self.replace],
                "wrong devices": [self.wrong_device],
                "uneven inputs": [self.uneven],
                "idle ranks": [self.idle],
                "errors": [self.fail],
            }
        )
        if self.d.buffers:
            makers += [self.set_buffers, self.set_buffers, self.evaluate]
        if self.handed < len(self.d.params):
            makers += [self.add_group, self.add_group]
        return makers

    def some(self) -> tuple[int, ...]:
        count = len(self.d.params)
        return tuple(sorted(self.d.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count))))

    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.d.draw(st.sets(st.integers(0, self.d.size - 1), min_size=1, max_size=self.d.size))))

    def backward(self) -> None:
        rowless = (self.d.below(self.d.size),) if self.d.chance(6) else ()
        self.made.append(g.Backward(times=self.d.one_of(1, 1, 1, 2, 8), rowless=rowless))
        self.synced()

    def synced(self) -> None:
        self.pending, self.quiet, self.trained = False, False, True

    def accumulate(self) -> None:
        """Add a backward without sync, and in most cases one with sync after it."""
        if self.static and not (self.trained or self.d.has("static graphs that begin without sync")):
            return
        self.made.append(g.Backward(synced=False, times=self.d.one_of(1, 1, 2)))
        self.pending = self.quiet = self.trained = True
        if self.d.one_of(True, True, False):
            self.made.append(g.Backward())
            self.synced()

    def use_some(self) -> None:
        if not self.static:
            self.made.append(g.Backward(skips=self.some(), skipped_by=self.ranks()))
            self.synced()

    def train(self) -> None:
        self.backward()
        self.step()
        self.clear()

    def step(self) -> None:
        if not self.pending:
            self.made.append(g.Step())

    def clear(self) -> None:
        if not self.pending:
            self.made.append(g.Clear(self.d.one_of(True, True, False)))

    def give(self) -> None:
        # A view of a bucket must not be replaced, and no law is about a frozen parameter's gradient.
        if self.d.option not in ("bucket-view", "static-graph"):
            to = tuple(
                index for index in self.some()
                if index not in self.frozen and self.d.params[index].layout != "embedding"
            )  # fmt: skip
            if to:
                self.made.append(g.Give(to))

    def set_rate(self) -> None:
        self.made.append(g.SetRate(self.d.one_of(0.02, 0.2)))

    def add_group(self) -> None:
        left = len(self.d.params) - self.handed
        if left > 0:
            count = self.d.draw(st.integers(1, left))
            self.made.append(g.AddGroup(count, self.d.one_of(0.2, 0.02)))
            self.handed += count
            self.saved = False

    def freeze(self) -> None:
        if self.static:
            return
        number = self.d.below(len(self.d.params))
        self.frozen ^= {number}
        self.made.append(g.Freeze(number, number in self.frozen))

    def replace(self) -> None:
        number = self.d.below(len(self.d.params))
        if not self.static and not self.d.params[number].also and not self.pending:
            self.made += [g.Replace(number), g.Backward()]
            self.synced()
            self.saved = False

    def set_buffers(self) -> None:
        if self.quiet:
            return
        reassigned = self.d.sometimes("reassigned buffers", 3)
        self.made.append(g.SetBuffers(reassigned))
        if self.d.has("buffers in evaluation") and self.d.chance(2):
            self.made.append(g.Evaluate())
        else:
            self.made.append(g.Backward())
            self.synced()

    def evaluate(self) -> None:
        if self.d.has("buffers in evaluation"):
            self.made.append(g.Evaluate())

    def save_and_load(self) -> None:
        built = self.d.has("state dicts of what was built")
        if not self.trained or (self.d.apart and not built):
            return
        if not self.saved or self.d.chance(2):
            self.made.append(g.Save(inside=not built))
            self.saved = True
        fresh = not self.d.ignored and self.d.chance(2)
        if fresh:
            self.pending = self.quiet = self.trained = False
        self.made.append(g.Load(fresh))

    def wrong_device(self) -> None:
        self.made.append(g.WrongDevice())

    def uneven(self) -> None:
        batches = tuple(self.d.draw(st.integers(1, 3)) for _ in range(self.d.size))
        self.made.append(g.Uneven(batches))

    def idle(self) -> None:
        self.add_failure("idle")

    def fail(self) -> None:
        self.add_failure(self.d.one_of("forward", "backward"))

    def add_failure(self, phase: str) -> None:
        self.made.append(g.Fail(self.d.below(self.d.size), phase))


#: A model and a sequence of actions, for a world of this size and a subject that claims these features.
draws = draws_of(ReplicateDrawing)
