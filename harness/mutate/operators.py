"""The operators by which torch's process groups call their backends, replaced: each call is an ``Operation``.

All calls of a group pass the dispatcher as ``c10d::allreduce_`` and so on: those of Python, those of DDP's reducer,
which is C++, and those of functional collectives. A kernel for CPU tensors in Python does what torch's own does: it
calls the group's backend. Groups and the user's code stay as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from everyrank.model.mutation import OUR_GROUP
from torch._C import _distributed_c10d as c10d

Tensors = list[torch.Tensor]


@dataclass
class Operation:
    """One call of a group: what goes in, what comes out, and how to make it."""

    name: str  # as the user knows it
    group: Any
    inputs: Tensors
    outputs: Tensors
    start: Callable[[Any, Tensors, Tensors, Any, int], Any] = field(repr=False)
    """Calls the backend with inputs, outputs, the reduction and the root, and returns its Work."""
    reduces: Any = None
    root: int = -1  # in the group
    peer: int = -1  # of a message
    tag: int = 0
    asynchronous: bool = True

    @property
    def in_place(self) -> bool:
        return self.name in ("all_reduce", "broadcast", "reduce")

    @property
    def reduction(self) -> str:
        return "" if self.reduces is None else str(self.reduces.name).lower()

    def run(self, inputs: Tensors | None = None, outputs: Tensors | None = None, root: int | None = None) -> Any:
        """Make the call, with other tensors or another root if they are given."""
        backend = self.group._get_backend(torch.device("cpu"))
        return self.start(
            backend,
            self.inputs if inputs is None else inputs,
            self.outputs if outputs is None else outputs,
            None if self.reduces is None else c10d.ReduceOp(self.reduces),
            self.root if root is None else root,
        )

    def again(self, inputs: Tensors, root: int | None = None) -> tuple[Any, Tensors]:
        """Make the call once more with other inputs, and outputs that nobody else has.

        A thread of its own makes it: a profiler of the user's, which records what its own thread does, counts calls.
        """
        outputs = inputs if self.in_place else [torch.empty_like(tensor) for tensor in self.outputs]
        with ThreadPoolExecutor(1) as aside:
            return aside.submit(self.run, inputs, outputs, root).result(), outputs


#: What is called with each operation: it makes the call, and returns its Work.
See = Callable[[Operation], Any]

#: The replaced kernels last as long as this process.
_libraries: list[Any] = []
#: What sees the calls of this process now; without it, they are made as they are.
_see: See | None = None


def see_by(see: See | None) -> None:
    """From now on, let ``see`` make each call of a group of this process on tensors of the CPU."""
    global _see
    _see = see
    if _libraries or see is None:
        return
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each kernel that is replaced
        for name, kernel in _kernels(_seen).items():
            library.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]
    _libraries.append(library)


def _seen(call: Operation) -> Any:
    return call.run() if _see is None or call.group.group_desc == OUR_GROUP else _see(call)


def _options(kind: Any, timeout: int, **values: Any) -> Any:
    options = kind()
    if timeout > 0:
        options.timeout = timedelta(milliseconds=timeout)
    for name, value in values.items():
        setattr(options, name, value)
    return options


def _reduction(boxed: Any) -> Any:
    return c10d.ReduceOp.RedOpType(boxed.op())


def _lists(flat: Tensors, like: Sequence[Sequence[Any]]) -> list[Tensors]:
    """Return flat tensors as lists of the same lengths as these."""
    ends = iter(flat)
    return [[next(ends) for _ in inner] for inner in like]


def _flat(lists: Sequence[Sequence[torch.Tensor]]) -> Tensors:
    return [tensor for inner in lists for tensor in inner]


def _kernels(see: See) -> dict[str, Callable[..., Any]]:
    """Return a kernel for each operator that can be seen. Torch leaves out arguments that have their default."""

    def unboxed(group: Any) -> Any:
        return c10d.ProcessGroup.unbox(group)

    def allreduce(
        tensors: Tensors, group: Any, op: Any, sparse: Any = None, wait: bool = True, time: int = -1
    ) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            options = _options(c10d.AllreduceOptions, time, reduceOp=reduces, asyncOp=wait)
            return backend.allreduce(outputs, options)

        call = Operation("all_reduce", unboxed(group), tensors, tensors, start, _reduction(op), asynchronous=wait)
        return tensors, see(call).boxed()

    def allreduce_coalesced(tensors: Tensors, group: Any, op: Any, wait: bool = True, time: int = -1) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            options = _options(c10d.AllreduceCoalescedOptions, time, reduceOp=reduces, asyncOp=wait)
            return backend.allreduce_coalesced(outputs, options)

        call = Operation("all_reduce", unboxed(group), tensors, tensors, start, _reduction(op), asynchronous=wait)
        return see(call).boxed()

    def broadcast(
        tensors: Tensors, group: Any, root: int, root_tensor: int, wait: bool = True, time: int = -1
    ) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            options = _options(c10d.BroadcastOptions, time, rootRank=root, rootTensor=root_tensor, asyncOp=wait)
            return backend.broadcast(outputs, options)

        call = Operation("broadcast", unboxed(group), tensors, tensors, start, root=root, asynchronous=wait)
        return tensors, see(call).boxed()

    def reduce(
        tensors: Tensors, group: Any, op: Any, root: int, root_tensor: int, wait: bool = True, time: int = -1
    ) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            options = _options(
                c10d.ReduceOptions, time, reduceOp=reduces, rootRank=root, rootTensor=root_tensor, asyncOp=wait
            )
            return backend.reduce(outputs, options)

        call = Operation("reduce", unboxed(group), tensors, tensors, start, _reduction(op), root, asynchronous=wait)
        return see(call).boxed()

    def allgather(lists: list[Tensors], tensors: Tensors, group: Any, wait: bool = True, time: int = -1) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            return backend.allgather(
                _lists(outputs, lists), inputs, _options(c10d.AllgatherOptions, time, asyncOp=wait)
            )

        call = Operation("all_gather", unboxed(group), tensors, _flat(lists), start, asynchronous=wait)
        return lists, see(call).boxed()

    def allgather_coalesced(lists: list[Tensors], tensors: Tensors, group: Any, wait: bool = True) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            return backend.allgather_coalesced(
                _lists(outputs, lists), inputs, _options(c10d.AllgatherOptions, -1, asyncOp=wait)
            )

        call = Operation("all_gather", unboxed(group), tensors, _flat(lists), start, asynchronous=wait)
        return see(call).boxed()

    def allgather_base(
        output: torch.Tensor, tensor: torch.Tensor, group: Any, wait: bool = True, time: int = -1
    ) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            options = _options(c10d.AllgatherOptions, time, asyncOp=wait)
            return backend._allgather_base(outputs[0], inputs[0], options)

        call = Operation("all_gather_into_tensor", unboxed(group), [tensor], [output], start, asynchronous=wait)
        return output, see(call).boxed()

    def reduce_scatter(
        tensors: Tensors, lists: list[Tensors], group: Any, op: Any, wait: bool = True, time: int = -1
    ) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            options = _options(c10d.ReduceScatterOptions, time, reduceOp=reduces, asyncOp=wait)
            return backend.reduce_scatter(outputs, _lists(inputs, lists), options)

        call = Operation(
            "reduce_scatter", unboxed(group), _flat(lists), tensors, start, _reduction(op), asynchronous=wait
        )
        return tensors, see(call).boxed()

    def reduce_scatter_base(
        output: torch.Tensor, tensor: torch.Tensor, group: Any, op: Any, wait: bool = True, time: int = -1
    ) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            options = _options(c10d.ReduceScatterOptions, time, reduceOp=reduces, asyncOp=wait)
            return backend._reduce_scatter_base(outputs[0], inputs[0], options)

        call = Operation(
            "reduce_scatter_tensor", unboxed(group), [tensor], [output], start, _reduction(op), asynchronous=wait
        )
        return output, see(call).boxed()

    def gather(
        lists: list[Tensors], tensors: Tensors, group: Any, root: int, wait: bool = True, time: int = -1
    ) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            options = _options(c10d.GatherOptions, time, rootRank=root, asyncOp=wait)
            return backend.gather(_lists(outputs, lists), inputs, options)

        call = Operation("gather", unboxed(group), tensors, _flat(lists), start, root=root, asynchronous=wait)
        return see(call).boxed()

    def scatter(
        tensors: Tensors, lists: list[Tensors], group: Any, root: int, wait: bool = True, time: int = -1
    ) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            options = _options(c10d.ScatterOptions, time, rootRank=root, asyncOp=wait)
            return backend.scatter(outputs, _lists(inputs, lists), options)

        call = Operation("scatter", unboxed(group), _flat(lists), tensors, start, root=root, asynchronous=wait)
        return tensors, see(call).boxed()

    def alltoall(takes: Tensors, gives: Tensors, group: Any, wait: bool = True, time: int = -1) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            return backend.alltoall(outputs, inputs, _options(c10d.AllToAllOptions, time, asyncOp=wait))

        call = Operation("all_to_all", unboxed(group), gives, takes, start, asynchronous=wait)
        return takes, see(call).boxed()

    def alltoall_base(
        output: torch.Tensor,
        tensor: torch.Tensor,
        group: Any,
        taken: list[int],
        given: list[int],
        wait: bool = True,
        time: int = -1,
    ) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            options = _options(c10d.AllToAllOptions, time, asyncOp=wait)
            return backend.alltoall_base(outputs[0], inputs[0], taken, given, options)

        call = Operation("all_to_all_single", unboxed(group), [tensor], [output], start, asynchronous=wait)
        return see(call).boxed()

    def barrier(tensor: torch.Tensor, group: Any, devices: Any = None, wait: bool = True, time: int = -1) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            return backend.barrier(_options(c10d.BarrierOptions, time, asyncOp=wait))

        return see(Operation("barrier", unboxed(group), [], [], start, asynchronous=wait)).boxed()

    def send(tensors: Tensors, group: Any, peer: int, tag: int) -> Any:
        def start(backend: Any, inputs: Tensors, outputs: Tensors, reduces: Any, root: int) -> Any:
            return backend.send(inputs, peer, tag)

        return see(Operation("send", unboxed(group), tensors, [], start, peer=peer, tag=tag)).boxed()

    return {
        "allreduce_": allreduce,
        "allreduce_coalesced_": allreduce_coalesced,
        "broadcast_": broadcast,
        "reduce_": reduce,
        "allgather_": allgather,
        "allgather_coalesced_": allgather_coalesced,
        "_allgather_base_": allgather_base,
        "reduce_scatter_": reduce_scatter,
        "_reduce_scatter_base_": reduce_scatter_base,
        "gather_": gather,
        "scatter_": scatter,
        "alltoall_": alltoall,
        "alltoall_base_": alltoall_base,
        "barrier": barrier,
        "send": send,
    }
