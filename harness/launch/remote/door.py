"""Connections between the hosts of one run: only those who know the run's secret get in.

Both sides prove that they know the secret, and neither shows it. What follows is not encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from everyrank.patience import Patience

#: What a visitor comes for: the first byte of its answer.
KEEPER, RANK, OUT, ERR = b"K", b"R", b"O", b"E"
#: A visitor: what it comes for, and its number.
Visitor = tuple[bytes, int]

_GREETING = b"everyrank 1\n"
_NONCE = 32
_VISITOR = struct.Struct("!cI")
_PROOF = hashlib.sha256().digest_size
_ANSWER = _VISITOR.size + _NONCE + _PROOF

#: A visitor must prove who it is within this many seconds.
_PATIENCE = 5.0
#: At most so many visitors may be at the door at a time. Others wait, in the kernel.
_AT_THE_DOOR = 128
#: While that many are there, they must prove it within this many seconds: strangers do not shut the door for others.
_HURRY = 0.5

#: The controller opens its door within this many seconds, also on a busy host. If it ends, that is noticed at once.
_OPENS = 150.0
#: Its host answers within this many seconds.
_REACH = 10.0
#: A visitor that was sent away knocks so many times in all.
_KNOCKS = 5

#: A host that is silent for about this many seconds is lost: the kernel asks it every few seconds.
SILENCE = 15


class Refused(OSError):
    """The other side does not know the secret of the run, or is not everyrank."""


class _SentAway(Refused):
    """The other side hung up before it had said anything."""


def new_secret() -> bytes:
    return secrets.token_bytes(_NONCE)


def knock(address: tuple[str, int], secret: bytes, visitor: Visitor, within: float = _OPENS) -> socket.socket:
    """Connect to a door and prove that we know the secret. Raise OSError if that fails.

    A process that waits for a core answers too late, and is sent away like a stranger: it knocks again.
    """
    for _ in range(_KNOCKS - 1):
        began = time.monotonic()
        try:
            return _knock(address, secret, visitor, within)
        except (_SentAway, ConnectionResetError, BrokenPipeError):
            if time.monotonic() - began < _HURRY:
                raise
    return _knock(address, secret, visitor, within)


def _knock(address: tuple[str, int], secret: bytes, visitor: Visitor, within: float) -> socket.socket:
    sock = socket.create_connection(address, timeout=min(within, _REACH))
    try:
        sock.settimeout(within)
        greeting = _read(sock, len(_GREETING) + _NONCE)
        if not greeting.startswith(_GREETING):
            raise Refused(f"{address[0]}:{address[1]} is not the controller of a run")
        nonce = os.urandom(_NONCE)
        claim = _VISITOR.pack(*visitor) + nonce
        sock.sendall(claim + _proof(secret, b"visitor", greeting, claim))
        if not hmac.compare_digest(_read(sock, _PROOF), _proof(secret, b"door", greeting, claim)):
            raise Refused(f"{address[0]}:{address[1]} does not know the secret of this run")
        sock.settimeout(None)
        notice_end(sock, reads_late=visitor[0] != KEEPER)
    except BaseException:
        sock.close()
        raise
    return sock


@dataclass
class _Pending:
    """A visitor that has not proved who it is."""

    greeting: bytes
    since: float
    answer: bytearray = field(default_factory=bytearray)


class Door:
    """Listens on one address. It admits visitors only while somebody waits for some."""

    def __init__(self, host: str, secret: bytes) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._secret = secret
        self._selector = selectors.DefaultSelector()
        self._pending: dict[socket.socket, _Pending] = {}
        self._admitted: dict[Visitor, socket.socket] = {}
        self._listens = False

    def admit(
        self, visitors: Iterable[Visitor], within: Patience, hopeless: Callable[[], bool] = lambda: False
    ) -> dict[Visitor, socket.socket]:
        """Wait until all of these visitors are in, the limit is over, or it is hopeless. Return those who are in."""
        visitors = set(visitors)
        while not visitors <= self._admitted.keys() and (left := within.turn()) and not hopeless():
            self._turn(left)
        return {visitor: self._admitted.pop(visitor) for visitor in visitors & self._admitted.keys()}

    def arrived(self) -> set[Visitor]:
        """Return those who are in, and have not been returned yet."""
        return set(self._admitted)

    def close(self) -> None:
        for sock in [*self._pending, *self._admitted.values(), self._listener]:
            sock.close()
        self._selector.close()

    def _turn(self, patience: float) -> None:
        allowed = _PATIENCE if len(self._pending) < _AT_THE_DOOR else _HURRY
        waits = [pending.since + allowed - time.monotonic() for pending in self._pending.values()]
        self._listen(len(self._pending) < _AT_THE_DOOR)
        for key, _ in self._selector.select(max(0.0, min([patience, *waits]))):
            if key.fileobj is self._listener:
                self._greet()
            elif isinstance(key.fileobj, socket.socket):
                self._hear(key.fileobj)
        # Only now: this process may have been stopped, and what they answered meanwhile has been read.
        late = [sock for sock, pending in self._pending.items() if time.monotonic() >= pending.since + allowed]
        for sock in late:
            self._send_away(sock)

    def _listen(self, open_up: bool) -> None:
        if open_up and not self._listens:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._listens and not open_up:
            self._selector.unregister(self._listener)
        self._listens = open_up

    def _greet(self) -> None:
        with contextlib.suppress(OSError):  # it has gone away
            sock, _ = self._listener.accept()
            greeting = _GREETING + os.urandom(_NONCE)
            self._pending[sock] = _Pending(greeting, time.monotonic())
            self._selector.register(sock, selectors.EVENT_READ)
            try:
                sock.setblocking(False)
                sock.sendall(greeting)
            except OSError:
                self._send_away(sock)

    def _hear(self, sock: socket.socket) -> None:
        pending = self._pending[sock]
        try:
            data = sock.recv(_ANSWER - len(pending.answer))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        pending.answer += data
        if not data:
            self._send_away(sock)
        elif len(pending.answer) == _ANSWER:
            claim, proof = bytes(pending.answer[:-_PROOF]), bytes(pending.answer[-_PROOF:])
            if hmac.compare_digest(proof, _proof(self._secret, b"visitor", pending.greeting, claim)):
                self._let_in(sock, claim, pending.greeting)
            else:
                self._send_away(sock)

    def _let_in(self, sock: socket.socket, claim: bytes, greeting: bytes) -> None:
        self._selector.unregister(sock)
        del self._pending[sock]
        kind, number = _VISITOR.unpack_from(claim)
        sock.settimeout(_PATIENCE)
        try:
            sock.sendall(_proof(self._secret, b"door", greeting, claim))
            sock.settimeout(None)
            notice_end(sock, reads_late=kind != KEEPER)
        except OSError:
            sock.close()
            return
        if (before := self._admitted.pop((kind, number), None)) is not None:
            before.close()
        self._admitted[kind, number] = sock

    def _send_away(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        del self._pending[sock]
        sock.close()


def _proof(secret: bytes, side: bytes, greeting: bytes, claim: bytes) -> bytes:
    return hmac.digest(secret, side + greeting + claim, hashlib.sha256)


def _read(sock: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        data = sock.recv(count - len(received))
        if not data:
            raise _SentAway("the other side hung up: it does not take us for a process of its run")
        received += data
    return received


def notice_end(sock: socket.socket, reads_late: bool = False) -> None:
    """Send each message at once, and notice when the other host is gone without a word.

    With ``reads_late``, the other process may leave what we send unread for any time. Then a host that is gone while
    something is on its way is noticed by another connection: here the kernel would take such a process for a host
    that is gone.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = {
        "TCP_KEEPIDLE": 5,
        "TCP_KEEPINTVL": 2,
        "TCP_KEEPCNT": 5,
        "TCP_USER_TIMEOUT": 0 if reads_late else SILENCE * 1000,
    }
    for name, value in values.items():
        if (option := getattr(socket, name, None)) is not None:  # not all systems have all of them
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
