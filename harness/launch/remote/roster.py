"""Where the processes of a run without an agent find its controller, and how each learns that another has ended.

torchrun's agent ends all of its processes when one has died. Those that a script has started have only each other: so
each of the others connects to the controller at MASTER_PORT, as early as it can, and keeps the connection while it
collects. The kernel closes a connection at the end of a process, whatever ended it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from everyrank.launch.remote.door import notice_end
from everyrank.wire import torchrun_variables

#: What a process sends first: who it is.
_HELLO = struct.Struct("!16sI")
_NAME = b"everyrank roster"

#: A process that cannot reach the controller yet tries again after this share of the time, and this many seconds.
_SHARE, _AGAIN = 10.0, 0.1
#: A try that is made beside the collection waits for this many seconds at most.
_BESIDE = 0.2


@dataclass
class _Guest:
    """A process that has connected. Its number is known when it has sent its hello."""

    number: int = -1
    hello: bytearray = field(default_factory=bytearray)
    has_ended: bool = False


class Roster:
    """The controller's side. The kernel takes connections while the controller collects; they are read afterwards."""

    def __init__(self, port: int, size: int) -> None:
        if socket.has_dualstack_ipv6():
            self._listener = socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=max(128, size)
            )
        else:
            self._listener = socket.create_server(("", port), backlog=max(128, size))
        self._listener.setblocking(False)
        self._size = size
        self._guests: dict[socket.socket, _Guest] = {}
        self._invitation = b""

    def invite(self, invitation: bytes) -> None:
        """From now on, hand this to each process that comes, or has come."""
        self._invitation = struct.pack("!I", len(invitation)) + invitation

    def ended(self, arrived: Collection[int]) -> list[int]:
        """Take what has come. Return the processes that have ended, without those that have arrived elsewhere."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                notice_end(sock)  # also that of a whole host
                self._guests[sock] = _Guest()
        for sock, guest in list(self._guests.items()):
            self._hear(sock, guest)
        numbers = {guest.number for guest in self._guests.values() if guest.has_ended}
        living = {guest.number for guest in self._guests.values() if not guest.has_ended}
        return sorted(numbers - living - set(arrived))

    def close(self) -> None:
        for sock in [*self._guests, self._listener]:
            sock.close()
        self._guests.clear()

    def _hear(self, sock: socket.socket, guest: _Guest) -> None:
        """Read a hello, and answer it; or see that a process has ended. A stranger is sent away."""
        try:
            while guest.number < 0 and (data := sock.recv(_HELLO.size - len(guest.hello))):
                guest.hello += data
                if len(guest.hello) < _HELLO.size:
                    continue
                guest.number = self._number(bytes(guest.hello))
                if guest.number < 0:
                    break
                sock.sendall(self._invitation)
            if guest.number >= 0 and not guest.has_ended:
                sock.recv(1)  # a process sends nothing after its hello, so this is its end
                guest.has_ended = True
        except BlockingIOError:
            return
        except OSError:
            guest.has_ended = True
        if guest.number < 0:
            sock.close()
            del self._guests[sock]

    def _number(self, hello: bytes) -> int:
        name, number = _HELLO.unpack(hello)
        return number if name == _NAME and 0 < number < self._size else -1


class Entry:
    """The side of another process: its connection to the controller, which may not listen yet."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._sock: socket.socket | None = None
        self._next = 0.0  # when to try again
        self.problem = ""  # why the last try failed

    def try_again(self, within: float = _BESIDE) -> bool:
        """Connect to the controller, unless it was tried just now. Return whether there is a connection."""
        began = time.monotonic()
        if self._sock is None and began >= self._next:
            try:
                self._sock = socket.create_connection(torchrun_variables.address(), timeout=within)
                notice_end(self._sock)
                self._sock.sendall(_HELLO.pack(_NAME, self._number))
            except OSError as error:
                self.problem = str(error)
                self.close()
            now = time.monotonic()
            self._next = now + max(_AGAIN, _SHARE * (now - began))
        return self._sock is not None

    def read_invitation(self, within: float) -> bytes | None:
        """Return the controller's invitation, or None if none came. Raise OSError if the controller ended."""
        until = time.monotonic() + within
        while (left := until - time.monotonic()) > 0:
            if not self.try_again(max(left, _AGAIN)):
                time.sleep(min(_AGAIN, left))
                continue
            assert self._sock is not None
            if select.select([self._sock], [], [], left)[0]:
                self._sock.settimeout(10)
                (length,) = struct.unpack("!I", self._read(4))
                return self._read(length)
        return None

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _read(self, count: int) -> bytes:
        assert self._sock is not None
        received = b""
        while len(received) < count:
            try:
                data = self._sock.recv(count - len(received))
            except ConnectionError:  # it ended before it had read our hello
                data = b""
            if not data:
                raise ConnectionResetError("it ended before it had collected its tests; its output says why")
            received += data
        return received
