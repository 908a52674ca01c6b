"""Typed messages over a stream socket: a length, then MessagePack. A bit of the length marks hidden surrogates."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
from everyrank.patience import Patience
from everyrank.wire import surrogates

_LENGTH = struct.Struct("!I")
_LARGEST = 256 * 1024 * 1024
_HIDES = 1 << 31

In = TypeVar("In")


class Closed(Exception):
    """The other side is gone."""


class Late(Closed):
    """Nothing came within the limit."""


class Channel(Generic[In]):
    """One end of a conversation. ``incoming`` is the union of the messages that may arrive here."""

    def __init__(self, sock: socket.socket, incoming: Any) -> None:
        self.sock = sock
        self._incoming = incoming
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=str)
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: msgspec.Struct, fds: list[int] | None = None) -> None:
        try:
            body, mark = self._encoder.encode(message), 0
        except UnicodeEncodeError:
            plain = msgspec.to_builtins(message, builtin_types=(bytes,), enc_hook=str)
            body, mark = self._encoder.encode(surrogates.hide(plain)), _HIDES
        data = _LENGTH.pack(len(body) | mark) + body
        with self._sending:
            try:
                if fds:
                    sent = socket.send_fds(self.sock, [data], fds)
                    data = data[sent:]
                self.sock.sendall(data)
            except OSError as error:
                raise Closed(str(error)) from error

    def receive(self, within: Patience | None = None) -> In:
        """Wait for the next message. Raise Late if none comes within the limit."""
        while (message := self._next()) is None:
            if within is None:
                self._read()
            else:
                self._read_within(within)
        return message

    def arrived(self) -> Iterator[In]:
        """Yield the messages that have arrived; never block. Raise Closed after them if the other side is gone."""
        closed: Closed | None = None
        while closed is None:
            try:
                if not self._read(flags=socket.MSG_DONTWAIT):
                    break
            except Closed as error:
                closed = error
        while (message := self._next()) is not None:
            yield message
        if closed is not None:
            raise closed

    @property
    def is_local(self) -> bool:
        """Return whether both ends are on one host."""
        return self.sock.family == socket.AF_UNIX

    def read_to_end(self, within: float) -> None:
        """Read what the other side sent before its end, which has come or comes soon. ``arrived`` yields it."""
        self.sock.settimeout(within)
        with contextlib.suppress(Closed):
            while self._read():
                pass

    def receive_with_fds(self, count: int) -> tuple[In, list[int]]:
        """Wait for the next message and its descriptors. Only for a sender of one message at a time."""
        head, fds, _, _ = socket.recv_fds(self.sock, _LENGTH.size, count)
        if not head:
            raise Closed("end of stream")
        self._buffer += head
        while (message := self._next()) is None:
            self._read(self._end() - len(self._buffer))
        return message, fds

    def close(self) -> None:
        self.sock.close()

    def _read(self, most: int = 1 << 18, flags: int = 0) -> bool:
        """Read once; return False if no data has arrived."""
        try:
            data = self.sock.recv(most, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("end of stream")
        self._buffer += data
        return True

    def _read_within(self, patience: Patience) -> None:
        while seconds := patience.turn():
            self.sock.settimeout(seconds)
            try:
                self._read()
                return
            except Closed as error:
                cause = error.__cause__
                if not isinstance(cause, TimeoutError) or cause.errno is not None:
                    raise  # with a number, it is the kernel that gives the other host up
            finally:
                self.sock.settimeout(None)
        raise Late("timed out")

    def _end(self) -> int:
        """Return where the next message ends in the buffer; where its length ends, if that has not arrived."""
        if len(self._buffer) < _LENGTH.size:
            return _LENGTH.size
        length = _LENGTH.unpack_from(self._buffer)[0] & ~_HIDES
        if length > _LARGEST:
            raise Closed(f"a message of {length} bytes was announced")
        return int(_LENGTH.size + length)

    def _next(self) -> In | None:
        end = self._end()
        if len(self._buffer) < end:
            return None
        hides = _LENGTH.unpack_from(self._buffer)[0] & _HIDES
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            if hides:
                plain = surrogates.show(msgspec.msgpack.decode(body))
                message: In = msgspec.convert(plain, self._incoming)
            else:
                message = self._decoder.decode(body)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise Closed(f"not a message of everyrank: {error}") from error
        return message


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors that came with a message."""
    for fd in fds:
        os.close(fd)
