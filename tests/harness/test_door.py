"""The door of a run: who does not know the run's secret gets nowhere."""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from everyrank.launch.remote import door as doors
from everyrank.launch.remote.door import KEEPER, RANK, Door, Refused, Visitor, knock, new_secret
from everyrank.patience import Patience
from everyrank.wire.channel import Channel, Closed
from everyrank.wire.messages import FromRank, Leave, ToRank
from everyrank.wire.remote import RemoveFolder, ToRemoteKeeper


@pytest.fixture
def secret() -> bytes:
    return new_secret()


class WatchedDoor(Door):
    """A door that closes at its end what it has admitted, and what has knocked."""

    def __init__(self, secret: bytes) -> None:
        super().__init__("127.0.0.1", secret)
        self.inside: list[socket.socket] = []
        self.outside: list[socket.socket] = []

    def knock(self, secret: bytes, visitor: Visitor) -> None:
        self.outside.append(knock(self.address, secret, visitor))

    def let_in(self, *wanted: Visitor, within: float = 20) -> list[Visitor]:
        admitted = self.admit(wanted, Patience(within))
        self.inside += admitted.values()
        return list(admitted)

    def close(self) -> None:
        super().close()
        for sock in [*self.inside, *self.outside]:
            sock.close()


@pytest.fixture
def door(secret: bytes) -> Iterator[WatchedDoor]:
    made = WatchedDoor(secret)
    yield made
    made.close()


@contextlib.contextmanager
def beside(action: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Run an action in a thread meanwhile; yield what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield raised
    thread.join(30)
    assert not thread.is_alive()


def test_who_knows_the_secret_gets_in_and_both_can_talk(door: WatchedDoor, secret: bytes) -> None:
    with beside(lambda: door.knock(secret, (RANK, 7))) as raised:
        assert door.let_in((RANK, 7)) == [(RANK, 7)]
    assert raised == []
    Channel(door.outside[0], ToRank).send(Leave())
    assert Channel(door.inside[0], ToRank).receive() == Leave()


def test_a_stranger_is_sent_away_and_does_not_learn_more(
    door: WatchedDoor, secret: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_KNOCKS", 1)  # a stranger that waited for a core would knock again

    def with_another_secret() -> None:
        door.knock(new_secret(), (KEEPER, 0))

    with beside(with_another_secret) as raised, beside(lambda: door.knock(secret, (KEEPER, 1))):
        assert door.let_in((KEEPER, 0), (KEEPER, 1), within=3) == [(KEEPER, 1)]
    assert [isinstance(error, Refused) for error in raised] == [True]


@pytest.mark.parametrize(("hurry", "expected"), [(0.0, 5), (1e6, 1)], ids=["late", "in time"])
def test_a_visitor_that_was_late_knocks_again(
    secret: bytes, monkeypatch: pytest.MonkeyPatch, hurry: float, expected: int
) -> None:
    monkeypatch.setattr(doors, "_HURRY", hurry)
    visits = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send_away() -> None:
            for _ in range(expected):
                visitor, _ = listener.accept()
                visits.append(visitor.getpeername())
                visitor.close()

        with beside(send_away), pytest.raises((Refused, ConnectionError)):
            knock(listener.getsockname()[:2], secret, (RANK, 0))
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert len(visits) == expected


def test_a_controller_that_reads_late_does_not_lose_a_rank(door: WatchedDoor, secret: bytes) -> None:
    """A stopped or starved process reads nothing: its kernel answers, and TCP_USER_TIMEOUT ends that nevertheless."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        pytest.skip("this system has no TCP_USER_TIMEOUT")
    for visitor in ((RANK, 1), (KEEPER, 2)):
        with beside(functools.partial(door.knock, secret, visitor)):
            assert door.let_in(visitor) == [visitor]
    limits = [sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for sock in (*door.outside, *door.inside)]
    assert limits == [0, 15000, 0, 15000]


def test_what_a_visitor_answered_while_the_controller_was_stopped_is_heard(
    door: WatchedDoor, secret: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = 0.0

    def stop() -> bool:
        nonlocal stopped
        if door._pending:
            select.select(list(door._pending), [], [], 20)
            stopped += 3600.0
        return False

    monkeypatch.setattr(doors, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + stopped))
    monkeypatch.setattr(doors, "_KNOCKS", 1)
    with beside(lambda: door.knock(secret, (RANK, 7))) as raised:
        door.inside += door.admit({(RANK, 7)}, Patience(20.0), stop).values()
    assert raised == []


@pytest.mark.parametrize(
    "noise",
    [b"", b"GET / HTTP/1.0\r\n\r\n", b"\x80\x04\x95" + b"x" * 66, b"x" * 100_000],
    ids=["nothing", "http", "a pickle", "much"],
)
def test_noise_neither_gets_in_nor_holds_others_up(door: WatchedDoor, secret: bytes, noise: bytes) -> None:
    with socket.create_connection(door.address) as stranger:
        stranger.sendall(noise[:60_000])
        with beside(lambda: door.knock(secret, (RANK, 3))) as raised:
            assert door.let_in((RANK, 3)) == [(RANK, 3)]
    assert raised == []


def test_a_crowd_of_idle_strangers_does_not_shut_the_door(door: WatchedDoor, secret: bytes) -> None:
    with contextlib.ExitStack() as crowd:
        for _ in range(300):
            crowd.enter_context(socket.create_connection(door.address))
        with beside(lambda: door.knock(secret, (KEEPER, 2))) as raised:
            assert door.let_in((KEEPER, 2)) == [(KEEPER, 2)]
    assert raised == []


def test_an_answer_that_was_overheard_does_not_open_the_door_again(door: WatchedDoor, secret: bytes) -> None:
    """Each greeting is new, so a proof is good for one visit."""
    heard = bytearray()

    def listen_in(port: int) -> None:
        # A relay between a visitor and the door writes down what the visitor says.
        with socket.create_server(("127.0.0.1", port)) as relay:
            ports.append(relay.getsockname()[1])
            ready.set()
            visitor, _ = relay.accept()
            with visitor, socket.create_connection(door.address) as inner:
                visitor.sendall(inner.recv(1 << 10))
                heard.extend(visitor.recv(1 << 10))
                inner.sendall(heard)
                visitor.sendall(inner.recv(1 << 10))

    ports: list[int] = []
    ready = threading.Event()
    with beside(lambda: listen_in(0)):
        assert ready.wait(10)
        with beside(lambda: door.outside.append(knock(("127.0.0.1", ports[0]), secret, (RANK, 1)))) as raised:
            assert door.let_in((RANK, 1)) == [(RANK, 1)]
    assert raised == []
    with socket.create_connection(door.address) as thief:
        thief.sendall(heard)
        assert door.let_in((RANK, 1), within=1) == []


def test_a_visitor_finds_out_that_the_door_is_false(secret: bytes) -> None:
    """A process that took over the controller's port does not get orders or tests from anybody."""
    with socket.create_server(("127.0.0.1", 0)) as false:

        def pretend() -> None:
            visitor, _ = false.accept()
            with visitor:
                visitor.sendall(b"everyrank 1\n" + b"n" * 32)
                visitor.recv(1 << 10)
                visitor.sendall(b"p" * 32)

        with beside(pretend), pytest.raises(Refused, match="does not know the secret of this run"):
            knock(false.getsockname()[:2], secret, (KEEPER, 0))


@pytest.mark.parametrize("body", [b"\x80\x04K\x01.", b"\xff" * 20, b""], ids=["a pickle", "no message", "empty"])
def test_what_is_not_a_message_closes_a_channel(body: bytes) -> None:
    """Nothing is unpickled: only MessagePack of known messages is read."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("!I", len(body)) + body)
        with pytest.raises(Closed, match="not a message of everyrank"):
            Channel(ours, FromRank).receive()


@pytest.mark.parametrize("name", ["/home/user", "..", "../other", "test-1/..", "", "."])
def test_a_keeper_removes_folders_by_name_and_never_by_path(name: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(theirs, ToRank).send(RemoveFolder(name))
        with pytest.raises(Closed, match="not a message of everyrank"):
            Channel(ours, ToRemoteKeeper).receive()
