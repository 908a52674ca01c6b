"""A wrapper that returns a new module is a subject like one that works in place."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from everyrank.suites.errors import BrokenAdapter
from everyrank.suites.replicate.wrappers import Wrappers, names_of
from torch import nn

from tests.engines import one_run
from tests.inner import Inner

_SUBJECTS = """
    from everyrank.fixtures.exemplars.replicate import replicate, wrap
    from everyrank.suites import Lack, Subject, conformance
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    NO_OPTION = Lack(TypeError, "no device_id")
    DDP = Subject("DDP", contract="replicate", build=DistributedDataParallel, lacks={"device-id[cpu-*]": NO_OPTION})

    def flatten(module, **options):
        flat = nn.Module()
        flat.flat = nn.Parameter(nn.utils.parameters_to_vector(module.parameters()).detach())
        return flat

    class Plain(nn.Module):
        def __init__(self, module, device_id=None, **options):
            super().__init__()
            self.inner = wrap(module, **options)
        def forward(self, *args, **kwargs):
            return self.inner(*args, **kwargs)

    NO_SYNC = Lack(AttributeError, "no accumulation")

    @conformance(DDP)
    def test_ddp(case): case.run()

    @conformance(Subject("wrap", contract="replicate", build=wrap))
    def test_wrap(case): case.run()

    @conformance(Subject("flat", contract="replicate", build=flatten))
    def test_flat(case): case.run()

    @conformance(Subject("plain", contract="replicate", build=Plain, lacks={"accumulate[*]": NO_SYNC}))
    def test_plain(case): case.run()
"""

#: One case of each law that needs the names of parameters, or what build returned.
_CHOSEN = (
    "parity.train[SGD-everything-steps2-ws2 or parity.submodules or mean[plain-ws2 or accumulate[parts2-ws2 "
    "or unused[last-rank-ws2 or tied[ws2 or init.sync[built-ws2 or buffers[train-ws2 or inputs[nested-ws2 "
    "or device-id[wrong-text-ws2 or ignored[plain-first-ws2 or state-dict[inside or state-dict[plain-ws2 "
    "or rewrap[while-training-ws2 or uneven[two-ws2 or mean[sparse-sum-ws2 or mean[partly-sparse-ws2"
)


inner = one_run(_SUBJECTS, "-W", "ignore", "--profile=full", "-k", _CHOSEN)


def test_ddp_by_the_three_lines_that_anyone_writes_is_red_where_it_deviates_and_nowhere_else(inner: Inner) -> None:
    ends = inner.endings("test_ddp")
    red = {case for case, outcome in ends.items() if outcome != "pass"}
    assert len(ends) > 20
    assert red == {
        "device-id[wrong-text-ws2]",
        "ignored[plain-first-ws2]",
        "state-dict[plain-ws2]",
        "rewrap[while-training-ws2]",
        "mean[sparse-sum-ws2]",
        "mean[partly-sparse-ws2]",
    }


def test_a_sparse_gradient_that_is_divided_while_it_is_still_read_is_seen(inner: Inner) -> None:
    """In what it was added to: two embeddings whose outputs are added, or a dense network and an embedding."""
    two, mixed = (inner[f"test_ddp[replicate/mean[{model}-ws2]]"].text for model in ("sparse-sum", "partly-sparse"))
    assert re.search(r"step 1, words\.weight\.grad: .*\n  off by \S+ \(5\.0e-01 relative\)", two)
    assert re.search(r"step 1, first\.weight\.grad: .*off by", mixed, re.DOTALL)


def test_an_option_that_is_not_there_is_no_proper_refusal_of_a_value(inner: Inner) -> None:
    result = inner["test_ddp[replicate/device-id[wrong-text-ws2]]"]
    assert result.properties["outcome"] == "fail"
    assert "got an unexpected keyword argument 'device_id'" in result.text


def test_an_exemplar_that_wraps_keeps_every_law(inner: Inner) -> None:
    ends = inner.endings("test_wrap")
    assert len(ends) > 20
    assert set(ends.values()) == {"pass"}


def test_if_the_kit_does_not_find_the_module_the_error_is_a_sentence_and_nothing_else_is_tried(
    inner: Inner,
) -> None:
    bad = [
        result for nodeid, result in inner.tests.items() if "::test_flat[" in nodeid and result.outcome != "skipped"
    ]
    assert len(bad) == 1
    assert bad[0].properties["outcome"] == "error"
    text = (
        "build of flat returned a Module in which the kit does not find the module that it was given: it has flat, "
        "not first.weight, first.bias, last.weight, last.bias; let build return that module, a wrapper that has it "
        "as a submodule, or one with a copy of it"
    )
    assert text in bad[0].text


def test_a_wrapper_without_a_way_to_accumulate_may_declare_so(inner: Inner) -> None:
    ends = inner.endings("test_plain")
    assert ends["accumulate[parts2-ws2]"] == "unsupported"
    assert ends["mean[plain-ws2]"] == ends["inputs[nested-ws2]"] == "pass"


class Around(nn.Module):
    """A wrapper."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def _model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    return model


def _wrapped(built: nn.Module, given: nn.Module) -> Wrappers:
    wrappers = Wrappers()
    wrappers.add(built, given, names_of(given), "mine")
    return wrappers


def test_parameters_have_their_local_names_in_their_local_order() -> None:
    model = _model()
    wrapper = Around(Around(model))
    wrappers = _wrapped(wrapper, model)
    assert wrappers.inside(wrapper) is model
    found = list(wrappers.parameters(wrapper))
    assert [name for name, _ in found] == [name for name, _ in model.named_parameters()]
    assert all(ours is theirs for (_, ours), theirs in zip(found, model.parameters(), strict=True))


def test_a_wrapper_of_a_submodule_has_no_part_in_a_name() -> None:
    model = _model()
    names = [name for name, _ in model.named_parameters()]
    last = model[1]
    model[1] = Around(last)
    wrappers = _wrapped(model[1], last)
    assert [name for name, _ in wrappers.parameters(model)] == names


def test_a_wrapper_may_work_on_a_copy() -> None:
    model = _model()
    wrapper = Around(copy.deepcopy(model))
    wrappers = _wrapped(wrapper, model)
    assert wrappers.inside(wrapper) is wrapper.module
    pairs = zip(wrappers.parameters(wrapper), model.parameters(), strict=True)
    assert all(ours is not theirs for (_, ours), theirs in pairs)


def test_a_wrapper_may_keep_the_module_out_of_sight() -> None:
    model = _model()
    wrapper = nn.ParameterList(model.parameters())
    assert _wrapped(wrapper, model).inside(wrapper) is model


def test_a_parameter_that_is_replaced_is_the_new_parameter() -> None:
    model = _model()
    wrapper = Around(model)
    wrappers = _wrapped(wrapper, model)
    model[0].bias = nn.Parameter(torch.ones(2))
    assert dict(wrappers.parameters(wrapper))["0.bias"] is model[0].bias


def test_a_module_of_others_is_refused() -> None:
    with pytest.raises(BrokenAdapter, match="it has neither parameters nor buffers, not "):
        _wrapped(nn.Tanh(), _model())
