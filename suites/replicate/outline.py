"""What a script of ``replicate`` has done so far, as plain data, and the features that it needs of a subject."""

from __future__ import annotations

from dataclasses import dataclass, field

from everyrank.suites.moves.model import ModelOutline
from everyrank.suites.replicate.model import Model

#: A subject is not asked for a feature if an entry of its ledger or of its lacks matches these cases.
FEATURES = {
    "values as they are built": "init.sync[built-*]",
    "small buckets": "parity.options[small-buckets-*]",
    "bucket views": "parity.options[bucket-view-*]",
    "static graphs": "parity.options[static-graph-*]",
    "mixed dtypes": "mean[mixed-dtypes-*]",
    "submodules": "parity.submodules[several-*]",
    "gradients near the largest number": "mean[halves-*]",
    "scalars": "mean[scalars-*]",
    "empty parameters": "mean[empty-*]",
    "few rows": "mean[few-rows-*]",
    "transposed parameters": "mean[non-contiguous-*]",
    "parameters with gaps": "mean[gaps-*]",
    "shared storage": "mean[views-*]",
    "large parameters": "mean[large-*]",
    "complex parameters": "mean[complex-*]",
    "sparse gradients": "mean[*sparse*]",
    "backwards without sync": "accumulate[parts*]",
    "backwards after all forwards": "accumulate[forwards-first-*]",
    "backwards that raised": "accumulate[raised-*]",
    "hooks": "accumulate[hooked-*]",
    "static graphs that begin without sync": "accumulate[static-graph-unsynced-*]",
    "unused parameters": "unused[last-*]",
    "unused parameters whose gradients were cleared": "unused[cleared-*]",
    "frozen parameters": "frozen[stays-*]",
    "thawed parameters": "frozen[thawed-*]",
    "tied parameters": "tied[*]",
    "replaced parameters": "rewrap[*]",
    "buffers": "buffers[train-*]",
    "buffers in evaluation": "buffers[eval-*]",
    "reassigned buffers": "buffers[reassigned-*]",
    "own buffers": "buffers[refused-*]",
    "ignored modules": "ignored[*]",
    "packed inputs": "inputs[nested-*]",
    "devices": "device-id[cpu-*]",
    "wrong devices": "device-id[wrong-*]",
    "state dicts of what was built": "state-dict[plain-*]",
    "uneven inputs": "uneven[last-fewer-*]",
    "idle ranks": "uneven[last-idle-*]",
    "errors": "errors.rank[*]",
}

#: What a module may be built with, each with the feature that allows it.
BUILT = {
    "": "",
    "apart": "submodules",
    "ignored": "ignored modules",
    "small-buckets": "small buckets",
    "bucket-view": "bucket views",
    "static-graph": "static graphs",
    "device": "devices",
    "own-buffers": "own buffers",
}


@dataclass
class Outline(ModelOutline[Model]):
    """The facts on which it depends whether a move makes sense, and what it needs."""

    pending: bool = False
    """Whether gradients are not averaged yet, and differ between ranks."""
    unsynced: bool = False
    """Whether a backward without sync came after the last synced one."""
    cleared: bool = False
    """Whether such a backward's gradients were cleared."""
    trained: bool = False
    quiet: bool = False
    """Whether the last forward was one without gradients or sync: DDP then sends no buffers with the next."""
    saved: bool = False
    hooked: set[int] = field(default_factory=set)
    """The parameters with a hook of the user's."""

    @property
    def static(self) -> bool:
        return self.model.built == "static-graph"

    @property
    def givable(self) -> list[int]:
        """The parameters that can be given a gradient by hand.

        A view of a bucket must not be replaced, and no law is about a frozen parameter's gradient.
        """
        if self.model.built in ("bucket-view", "static-graph"):
            return []
        params = enumerate(self.model.params)
        return [number for number, param in params if number not in self.frozen and param.layout != "embedding"]

    @property
    def hookable(self) -> list[int]:
        """The parameters that can be given a hook: it must not come after a graph was taken for granted."""
        return [] if self.static else [number for number in self.givable if number not in self.hooked]

    @property
    def replaceable(self) -> list[int]:
        """The parameters that can be replaced: of a tied one a name would be left."""
        if self.static:
            return []
        return [number for number, param in enumerate(self.model.params) if not param.also]
