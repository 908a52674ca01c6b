"""Opens groups by ``env://`` as torchrun's processes do, so that code which opens its group itself runs in ranks.

torchrun's agent hosts the store of ``env://``. Here rank 0 hosts it, as without torchrun: then code under test may
choose another address or port, which an agent's store would not answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

from everyrank.rank.world import RENDEZVOUS_NAME
from everyrank.wire import torchrun_variables

if TYPE_CHECKING:
    from everyrank.leaks.snapshot import LeakWatch
    from everyrank.wire.messages import Order

#: torch's handler of a scheme: yields a store, a rank and a world size.
Handler = Callable[..., Iterator[tuple[Any, int, int]]]


class Rendezvous:
    """Lets the ranks of a test open a group by ``env://``, destroy it and open it again as often as they like.

    torch alone, with torchrun or without, often fails the second time: an early rank finds the addresses that the
    others left in the store the first time, or a store that is about to close. So each opening has its own keys, and
    the store lives as long as the test.
    """

    def __init__(self) -> None:
        self._torchs_handlers: dict[str, Handler] = {}
        self._order: Order
        self._watch: LeakWatch
        self._openings = 0
        self._stores: list[Any] = []

    def begin(self, order: Order, watch: LeakWatch) -> None:
        """Prepare a new test."""
        self.end()
        self._order, self._watch = order, watch
        handlers = getattr(sys.modules.get("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
        if not self._torchs_handlers and handlers.keys() >= {"env", "tcp"}:
            self._torchs_handlers = dict(handlers)
            handlers.update(env=self._env, tcp=self._tcp)

    def end(self) -> None:
        """Close the store, unless the test left a group that uses it."""
        self._openings = 0
        self._stores.clear()

    def _env(self, url: str, **keywords: Any) -> Iterator[tuple[Any, int, int]]:
        named = parse_qs(urlparse(url).query).get(RENDEZVOUS_NAME)
        is_own = torchrun_variables.has_address_of(self._order)
        self._openings += not named
        prefix = f"everyrank/{named[0] if named else self._openings}"
        for store, rank, size in self._watched("env", url, **keywords):
            if is_own and (rank, size) == (self._order.rank, self._order.size):
                self._stores.append(store)
                dist: Any = sys.modules["torch.distributed"]
                store = dist.PrefixStore(prefix, store)
            yield store, rank, size

    def _tcp(self, url: str, **keywords: Any) -> Iterator[tuple[Any, int, int]]:
        return self._watched("tcp", url, **keywords)

    def _watched(self, scheme: str, url: str, **keywords: Any) -> Iterator[tuple[Any, int, int]]:
        results = self._torchs_handlers[scheme](url, **keywords)
        while True:
            # libuv, which serves the store, keeps a pipe as long as the process lives. That is no leak.
            with self._watch.allowing():
                try:
                    opened = next(results)
                except StopIteration:
                    return
            yield opened
