"""The features of the scripts of ``trainer``: each belongs to cases, of which a ledger or a lack may speak."""

from __future__ import annotations

from everyrank.fixtures.optimizers import rows

#: The parts and mutations of a wrong state. An optimizer's entry that is missing may be taken for one that never was.
WRONG_STATES = tuple(
    (part, mutation)
    for part, mutations in (
        ("model", ("missing", "extra", "misshapen")),
        ("optimizer", ("extra", "misshapen")),
    )
    for mutation in mutations
)

#: The optimizers of scripts. SparseAdam takes no dense gradients; Muon orthogonalizes in bf16, where the order of a
#: sum decides how a number is rounded.
OPTIMIZERS = tuple(row for row in rows() if not row.needs & {"sparse", "2d"})

#: A subject is not asked for a feature if an entry of the subject's ledger or of its lacks matches these cases.
FEATURES = {
    "own values": "init.sync[trained-*]",
    "own frozen values": "init.sync[built-frozen-*]",
    "own buffers": "init.sync[buffers-*]",
    "orders of registration": "in-order[*]",
    "any width": "parity.models[equal-shapes-*]",
    "branches": "equal[unused-*]",
    "parameters of no layer": "parity.models[unused-ws*]",
    "frozen parameters": "parity.models[frozen-*]",
    "thawed parameters": "parity.models[thawed-*]",
    "modes of parts": "parity.models[thawed-*]",
    "tied parameters": "parity.models[tied-*]",
    "unused parameters": "parity.models[unused-ws*]",
    "parameters that some ranks use": "parity.models[unused-on-*]",
    "parameters that no rank uses later": "parity.models[unused-later-*]",
    "scalars": "parity.models[scalars-*]",
    "empty parameters": "parity.models[empty-*]",
    "few rows": "parity.models[few-rows-*]",
    "transposed parameters": "parity.models[non-contiguous-*]",
    "parameters with gaps": "parity.models[gaps-*]",
    "shared storage": "parity.models[views-*]",
    "mixed dtypes": "parity.models[mixed-dtypes-*]",
    "complex parameters": "parity.models[complex-*]",
    "buffers": "parity.models[buffers-*]",
    "counting buffers": "parity.models[counting-*]",
    "generators": "parity.models[draws-*]",
    "sparse gradients": "parity.sparse[*]",
    "closures": "parity.closure[*]",
    "losses": "loss[*]",
    "rows": "mean[*]",
    "microbatches": "accumulate[parts*]",
    "sparse microbatches": "accumulate[sparse-*]",
    "microbatches of some ranks": "accumulate[unused-*]",
    "other numbers of microbatches on other ranks": "accumulate[uneven-*]",
    "parameters that the first microbatch skips": "accumulate[first-unused-*]",
    "parameters that the last microbatch skips": "accumulate[last-unused-*]",
    "clipping": "clip[cut-*]",
    "clipping of microbatches": "clip[accumulated-*]",
    "clipping of frozen parameters": "clip[frozen-*]",
    "clipping of tied parameters": "clip[tied-*]",
    "clipping of unused parameters": "clip[unused-*]",
    # Where a plan cuts layers, a tied parameter and one of no layer stay plain tensors beside others.
    "clipping of parameters of no layer": "clip[tied-*]",
    "closures with parameters of no layer": "clip[tied-*]",  # LBFGS lays all gradients into one tensor
    "clipping of mixed dtypes": "clip[mixed-dtypes-*]",
    "clipping of complex parameters": "clip[mixed-dtypes-*]",  # a complex one is never alone
    "infinity": "non-finite[inf-ws*]",
    "nan": "non-finite[nan-*]",
    "clipped infinity": "non-finite[inf-clipped-*]",
    "groups": "parity.groups[SGD-groups-*]",
    "added groups": "parity.groups[added-after-*]",
    "options of groups that were just added": "parity.groups[added-by-default-*]",
    "schedulers": "parity.schedule[*]",
    "rates that are tensors": "alias[filled-*]",
    # Not by a count, which a subject may lack that takes rates as they are changed.
    "changed rates": "alias[scheduler-resumed-*]",
    "late changes": "late[*]",
    "states": "state.round-trip[rate-*]",
    "states of scheduled rates": "alias[resumed-by-count-*]",
    "states in between": "state.inert[between-*]",
    "states of fresh trainers": "state.inert[fresh-*]",
    "states of tied parameters": "state.round-trip[tied-*]",
    "states of frozen parameters": "state.round-trip[frozen-*]",
    "states of unused parameters": "state.round-trip[unused-*]",
    "states of some groups": "state.round-trip[added-*]",
    "states of buffers": "state.round-trip[buffers-*]",
    "states that are overwritten": "state.round-trip[overwritten-*]",
    "states in another order": "state.in-order[*]",
    "states of the first rank": "state.reshard[*]",
    "written parameters": "written[in-place-*]",
    "parameters of new memory": "written[new-*]",
    "written buffers": "written[buffers-in-place-*]",
    "buffers of new memory": "written[buffers-new-*]",
    "hooks of gradients": "hooks[gradient-*]",
    "hooks of rates": "hooks[rate-*]",
    "errors everywhere": "errors.everywhere[loss-*]",
    "errors of microbatches": "errors.everywhere[second-*]",
    "errors with unused parameters": "errors.everywhere[unused-*]",
    "microbatches after errors": "errors.everywhere[microbatches-*]",
    "ranks that differ after errors": "errors.everywhere[some-ranks-*]",
    "errors in a row": "errors.everywhere[twice-*]",
    "written parameters after errors": "errors.everywhere[written-*]",
    "errors": "errors.rank[*]",
    "training after errors of a rank": "errors.rank[goes-on-*]",
    "loaders": "state.resume[*]",
    "invalid arguments": "errors.arguments[SGD-*]",
    **{f"{part} states, {mutation}": f"state.strict[{part}-{mutation}-*]" for part, mutation in WRONG_STATES},
    **{row.name: f"parity.train[{row.name}-defaults-*]" for row in OPTIMIZERS if "closure" not in row.needs},
    **{
        f"states of {row.name}": f"state.round-trip[{row.name}-*]" for row in OPTIMIZERS if "closure" not in row.needs
    },
}
