"""Draw the actions of ``trainer`` with Hypothesis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyrank.fixtures.optimizers import row
from everyrank.suites.generate.drawing import Actions, Maker
from everyrank.suites.trainer import grammar as g
from hypothesis import strategies as st

if TYPE_CHECKING:
    from everyrank.suites.trainer.drawing import TrainerDrawing


class TrainerActions(Actions["TrainerDrawing"]):
    """The actions of one draw."""

    MOST = 8

    def __init__(self, drawing: TrainerDrawing) -> None:
        super().__init__(drawing)
        params = drawing.params
        self.frozen = {number for number, param in enumerate(params) if param.frozen}
        self.handed = sum(group.count for group in drawing.groups) if drawing.groups else len(params)
        self.steps = 0
        self.fresh = True  # some parameters have not been stepped yet
        self.unused = any(param.unused for param in params)
        self.thawed = False
        self.saved = self.loaded = self.spoiled = False

    def make(self) -> tuple[g.Action, ...]:
        return super().make() or (g.Step(),)

    def makers(self) -> list[Maker]:
        if self.d.closures:
            return [self.step, self.step, *self.claimed({"invalid arguments": [self.refuse]})]
        makers: list[Maker] = [self.step, self.step, self.step, self.step]
        makers += self.claimed(
            {
                "states": [self.save, self.save_and_load, self.save_and_load, self.save_and_load],
                "changed rates": [self.set_rate, self.set_rate],
                "schedulers": [self.schedule],
                "late changes": [self.wait],
                "invalid arguments": [self.refuse],
                "errors": [self.fail],
                "states of the first rank": [self.reshard],
            }
        )
        if any(self._wrong_states()):
            makers.append(self.wrong_state)
        if self.handed < len(self.d.params):
            makers += [self.add_group] * 3
        if self.d.params and self.d.has("parameters that some ranks use"):
            makers += [self.use_some, self.use_some]
        if self.d.params and self.d.has("parameters that no rank uses later"):
            makers += [self.use_less, self.use_less]
        if self.d.params and self.d.has("thawed parameters"):
            makers.append(self.freeze)
        if not self.d.sparse and (self.d.has("infinity") or self.d.has("nan")):
            makers.append(self.spoil)
        return makers

    # --- training ------------------------------------------------------------------------------------

    def step(self) -> None:
        parts = self._parts()
        rows: tuple[int, ...] = ()
        if self.d.has("rows") and self.d.chance(4):
            rows = tuple(1 + self.d.below(5) for _ in range(self.d.size))
        times = 1 if self.d.closures else self.d.one_of(1, 1, 2)
        self._add(g.Step(times, parts, self._max_norm(parts), rows=rows))

    def _add(self, step: g.Step) -> None:
        # LBFGS looks for the minimum several times a step: two orders of a sum are apart after two steps.
        if self.d.closures and self.steps + step.times > 2:
            return
        self.made.append(step)
        self.steps += step.times
        self.fresh = self.thawed = False

    def _parts(self) -> int:
        able = self.d.has("microbatches") and (not self.d.sparse or self.d.has("sparse microbatches"))
        return int(self.d.one_of(1, 1, 2, 3)) if able else 1

    def _max_norm(self, parts: int) -> float:
        """Draw a norm to which the step clips, or 0."""
        d = self.d
        if d.closures or d.kind in ("sparse", "complex") or not d.has("clipping"):
            return 0.0
        if d.reordered or self.handed < len(d.params):
            return 0.0  # a norm in another order has other bits, and gradients that no group has may pile up
        asked = {
            "clipping of microbatches": parts > 1,
            "clipping of frozen parameters": bool(self.frozen),
            "clipping of tied parameters": any(param.also for param in d.params),
            "clipping of unused parameters": self.unused,
            "clipping of mixed dtypes": d.kind == "mixed",
        }
        if not all(d.has(feature) for feature, needed in asked.items() if needed):
            return 0.0
        return float(d.one_of(0.0, 0.0, 0.0, 0.0, 0.05, 0.5))

    def use_some(self) -> None:
        parts = self._parts() if self.d.has("microbatches of some ranks") else 1
        ranks = self.d.draw(st.sets(st.integers(0, self.d.size - 1), min_size=1, max_size=self.d.size - 1))
        self._add(g.Step(parts=parts, skips=self._some(), skipped_by=tuple(sorted(ranks))))

    def use_less(self) -> None:
        """Add a step in which no rank uses some parameters."""
        if self.fresh and self.d.has("parameters that no rank uses later"):
            self.step()  # the law is about parameters that were used before
        self.unused = True
        self._add(g.Step(skips=self._some(), skipped_by=tuple(range(self.d.size))))

    def _some(self) -> tuple[int, ...]:
        count = len(self.d.params)
        return tuple(sorted(self.d.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count))))

    def wait(self) -> None:
        self._add(g.Step(times=self.d.one_of(1, 4), waits=True))

    def spoil(self) -> None:
        if self.spoiled:
            return
        self.spoiled = True
        able = [value for value, feature in (("inf", "infinity"), ("nan", "nan")) if self.d.has(feature)]
        value = str(self.d.one_of(*able))
        max_norm = self._max_norm(1) if value == "inf" and self.d.has("clipped infinity") else 0.0
        self._add(g.Step(max_norm=max_norm, spoiled=value, by=self.d.below(self.d.size)))

    def freeze(self) -> None:
        number = self.d.below(len(self.d.params))
        if number not in self.frozen and not self.d.has("frozen parameters"):
            return
        self.frozen ^= {number}
        self.made.append(g.Freeze(number, number in self.frozen))
        self.thawed = True

    # --- options -------------------------------------------------------------------------------------

    def set_rate(self) -> None:
        self.made.append(g.SetRate(self.d.one_of(0.5, 2.0), self.d.one_of(-1, -1, 0, 1)))
        self.step()

    def schedule(self) -> None:
        if not self.loaded or self.d.has("changed rates"):
            self.made.append(g.Schedule(self.d.one_of(0.5, 0.25)))
            self.step()

    def add_group(self) -> None:
        left = len(self.d.params) - self.handed
        if left > 0:
            group = self.d.group(left)
            self.made.append(g.AddGroup(group))
            self.handed += group.count
            self.saved, self.fresh = False, True

    def refuse(self) -> None:
        self.made.append(g.Refuse(self.d.below(len(row(self.d.optimizer).invalid))))

    # --- states --------------------------------------------------------------------------------------

    def _can_save(self) -> bool:
        d = self.d
        asked = {
            f"states of {d.optimizer}": True,
            "states in between": not self.fresh,
            "states of fresh trainers": self.fresh or self.thawed,
            "states of tied parameters": any(param.also for param in d.params),
            "states of frozen parameters": bool(self.frozen),
            "states of unused parameters": self.unused,
            "states of buffers": d.buffer,
        }
        return self.handed == len(d.params) and all(d.has(feature) for feature, needed in asked.items() if needed)

    def save(self) -> None:
        if self._can_save():
            self.made.append(g.Save())
            # To ask for the state of a fresh trainer must change nothing; no law is about loading it.
            self.saved = not self.fresh

    def save_and_load(self) -> None:
        if not self.saved or self.d.chance(2):
            self.save()
        if not self.saved:
            return
        if self.d.chance(2):
            self.step()
            if self.d.chance(3):
                self.save()
        fresh = self.d.one_of(True, False)
        tied = any(param.also for param in self.d.params)
        reordered = fresh and not tied and self.d.sometimes("states in another order", 2)
        of_first = self.d.sometimes("states of the first rank", 2)
        self.made.append(g.Load(fresh, reordered, of_first))
        self.loaded = True
        if self.d.one_of(True, True, False):
            self.step()

    def wrong_state(self) -> None:
        self.made.append(g.WrongState(*self.d.one_of(*self._wrong_states())))

    def _wrong_states(self) -> list[tuple[str, str]]:
        return [
            (part, mutation) for part, mutation in g.WRONG_STATES if self.d.has(f"{part} states, {mutation}")
        ]  # fmt: skip

    # --- trainers of their own -----------------------------------------------------------------------

    def fail(self) -> None:
        self.made.append(g.Fail(self.d.below(self.d.size)))

    def reshard(self) -> None:
        if self._can_save() and self.d.has("states of Adam") and self.d.chance(2):
            before = self.d.one_of(2, 3)
            self.made.append(g.Reshard(before, 5 - before))
