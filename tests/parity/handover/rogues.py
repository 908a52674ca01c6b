"""Converters with one mistake, and how the report of each begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tests.parity.handover.models import Converter, Engine, State, Trainer, tokens


@dataclass(frozen=True)
class Rogue:
    convert: Callable[[State], State]
    begins: str
    """A pattern of the report's first line."""
    model: Callable[[], Any] = Trainer
    other: Callable[[], Any] = Engine
    transfer: Callable[[Any, Any], Any] | None = None

    def arguments(self) -> dict[str, Any]:
        way = {"convert": self.convert} if self.transfer is None else {"transfer": self.transfer}
        return {"model": self.model, "other": self.other, "inputs": tokens(), **way}


class LosesARow(Converter):
    def __call__(self, state: State) -> State:
        state["blocks.1.ff.up.weight"][3, 5] = 0
        return super().__call__(state)


class TakesATokenTwice(Converter):
    def __call__(self, state: State) -> State:
        state["embed.weight"][11] = state["embed.weight"][10]
        return super().__call__(state)


class ExchangesTwoTokens(Converter):
    """Of tokens that the inputs have not."""

    def __call__(self, state: State) -> State:
        state["embed.weight"][[6, 11]] = state["embed.weight"][[11, 6]]
        return super().__call__(state)


class ExchangesTwoElements(Converter):
    def o(self, layer: int, weight: torch.Tensor) -> torch.Tensor:
        weight = super().o(layer, weight).clone()
        if layer == 1:
            weight[3, 5], weight[5, 3] = weight[5, 3].clone(), weight[3, 5].clone()
        return weight


class ForgetsToTranspose(Converter):
    def o(self, layer: int, weight: torch.Tensor) -> torch.Tensor:
        return weight


class ForgetsToTransposeALayer(Converter):
    def o(self, layer: int, weight: torch.Tensor) -> torch.Tensor:
        return weight if layer == 1 else weight.t()


class ExchangesQueriesAndKeys(Converter):
    def qkv(self, kind: str, mine: State) -> torch.Tensor:
        return torch.cat([self.rows(name, mine[f"attn.{name}.{kind}"]) for name in "kqv"])


class ExchangesGateAndUp(Converter):
    def gate_up(self) -> tuple[str, ...]:
        return "up", "gate"


class LeavesHeadsInterleaved(Converter):
    def rows(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return value


class PutsHeadsApartInOneHead(Converter):
    def halves(self, value: torch.Tensor) -> torch.Tensor:
        return value.view(len(value) // 2, 2, *value.shape[1:]).transpose(0, 1).reshape(value.shape)


class LeavesKeysInterleaved(Converter):
    def rows(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return super().rows(name, value) if name == "q" else value


class FusesByHeads(Converter):
    def qkv(self, kind: str, mine: State) -> torch.Tensor:
        rows = super().qkv(kind, mine)
        return rows.view(3, 2, 4, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


class GoesThroughBfloat16(Converter):
    def qkv(self, kind: str, mine: State) -> torch.Tensor:
        found = super().qkv(kind, mine)
        return found.bfloat16().to(found.dtype)


class ScalesQueries(Converter):
    def rows(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return super().rows(name, value) * (0.5 if name == "q" else 1)


class ExchangesLayers(Converter):
    def __call__(self, state: State) -> State:
        names = {"blocks.0.": "blocks.1.", "blocks.1.": "blocks.0."}
        return super().__call__({names.get(name[:9], name[:9]) + name[9:]: value for name, value in state.items()})


class LeavesABiasOut(Converter):
    def block(self, prefix: str, layer: int, state: State) -> State:
        found = super().block(prefix, layer, state)
        found[f"{prefix}ff.down.bias"] = torch.zeros_like(found[f"{prefix}ff.down.bias"])
        return found


class TakesTheEmbeddingForTheHead(Converter):
    """As of a tied model, which this is not."""

    def __call__(self, state: State) -> State:
        return super().__call__(state) | {"head.weight": state["embed.weight"]}


def _without_the_head(model: Any, other: Any) -> None:
    """As of a model that is tied, into an engine that is not."""
    state = Converter()({name: value.clone() for name, value in model.state_dict().items()})
    del state["head.weight"]
    other.load_state_dict(state, strict=False)


def _other_eps() -> Any:
    engine = Engine()
    engine.blocks[1].norm1.eps = 1e-3
    return engine


ROGUES: Mapping[str, Rogue] = {
    "loses-an-element": Rogue(LosesARow(), r"handover: `blocks\.1\.ff\.up\.weight`\[3, 5\] is lost: nothing of the "),
    "takes-a-token-twice": Rogue(TakesATokenTwice(), r"handover: `embed\.weight`\[11, 0\] is lost: .* \(so 8 of "),
    "exchanges-two-tokens": Rogue(
        ExchangesTwoTokens(), r"handover: `embed\.weight`\[6, 0\] of the other has `embed\.weight`\[11, 0\] where "
    ),
    "exchanges-two-elements": Rogue(
        ExchangesTwoElements(),
        r"handover: `blocks\.1\.attn\.o\.weight`\[3, 5\] of the other has .*o\.weight`\[3, 5\] where .*\[5, 3\] b",
    ),
    "forgets-to-transpose": Rogue(
        ForgetsToTranspose(),
        r"handover: `blocks\.0\.attn\.o\.weight`\[0, 1\] of the other has .*\[0, 1\] where .*\[1, 0\] belongs: t",
    ),
    "forgets-to-transpose-a-layer": Rogue(
        ForgetsToTransposeALayer(), r"handover: `blocks\.1\.attn\.o\.weight`\[0, 1\] of the other .*: transposed"
    ),
    "exchanges-queries-and-keys": Rogue(
        ExchangesQueriesAndKeys(),
        r"handover: `blocks\.0\.attn\.qkv\.weight`\[0, 0\] of the other has .*k\.weight`\[0, 0\] where .*q\.weight`",
    ),
    "exchanges-gate-and-up": Rogue(
        ExchangesGateAndUp(),
        r"handover: `blocks\.0\.ff\.gate_up\.weight`\[0, 0\] of the other has `blocks\.0\.ff\.up\.weight`\[0, 0\] ",
    ),
    "leaves-heads-interleaved": Rogue(
        LeavesHeadsInterleaved(),
        r"handover: `blocks\.0\.attn\.qkv\.weight`\[1, 0\] of the other has .*q.weight`\[1, 0\] where .*rows of each "
        r"head of 4 ",
    ),
    "puts-heads-apart-in-one": Rogue(
        PutsHeadsApartInOneHead(), r"handover: `blocks\.0\.attn\.qkv\.weight`\[\d, 0\] of the other has .*rows "
    ),
    "leaves-keys-interleaved": Rogue(
        LeavesKeysInterleaved(),
        r"handover: `blocks\.0\.attn\.qkv\.weight`\[9, 0\] of the other has `blocks\.0\.attn\.k\.weight`\[1, 0\] ",
    ),
    "fuses-by-heads": Rogue(
        FusesByHeads(), r"handover: `blocks\.0\.attn\.qkv\.weight`\[4, 0\] .* by 2 heads, and belong one tensor after"
    ),
    "goes-through-bfloat16": Rogue(
        GoesThroughBfloat16(), r"handover: `blocks\.0\.attn\.qkv\.weight`\[0, 0\] of the other has gone through bf16"
    ),
    "scales-queries": Rogue(
        ScalesQueries(), r"handover: `blocks\.0\.attn\.qkv\.weight`\[0, 0\] of the other is .*q\.weight.* times 0\.5"
    ),
    "exchanges-layers": Rogue(
        ExchangesLayers(),
        r"handover: `blocks\.0\.norm1\.weight`\[0\] of the other has `blocks\.1\.norm1\.weight`\[0\]",
    ),
    "leaves-a-bias-out": Rogue(
        LeavesABiasOut(), r"handover: `blocks\.0\.ff\.down\.bias` is lost: nothing of the other has it \(so 8 of"
    ),
    "takes-the-embedding-for-the-head": Rogue(
        TakesTheEmbeddingForTheHead(), r"handover: `head\.weight` is lost: .*`head\.weight`\[0, 0\] there has `embed"
    ),
    "forgets-to-untie": Rogue(
        Converter(), r"handover: `(embed|head)\.weight` is lost: .*", other=lambda: Engine(tied=True)
    ),
    "forgets-to-tie": Rogue(
        Converter(),
        r"handover: `head\.weight`\[0, 0\] of the other is as it was built; the outputs part",
        model=lambda: Trainer(tied=True),
        transfer=_without_the_head,
    ),
    "has-another-epsilon": Rogue(
        Converter(), r"handover: the outputs part .*first module that parts is `blocks\.1\.norm1`", other=_other_eps
    ),
}
