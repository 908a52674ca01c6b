"""Where processes without an agent meet: who has ended is known, and strangers change nothing. All in one process."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest
from everyrank.launch.remote import roster as module
from everyrank.launch.remote.roster import Entry, Roster
from everyrank.launch.rendezvous import reserved_port


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    with reserved_port() as (host, port):
        monkeypatch.setenv("MASTER_ADDR", host)
        monkeypatch.setenv("MASTER_PORT", str(port))
        yield port


@pytest.fixture
def roster(port: int) -> Iterator[Roster]:
    with contextlib.closing(Roster(port, size=4)) as roster:
        yield roster


@contextlib.contextmanager
def entered(number: int) -> Iterator[Entry]:
    with contextlib.closing(Entry(number)) as entry:
        assert entry.try_again()
        yield entry


def test_a_process_that_entered_early_gets_the_invitation_later(roster: Roster) -> None:
    with entered(1) as entry:
        assert entry.read_invitation(0.01) is None
        roster.invite(b"come")
        assert roster.ended(arrived=()) == []
        assert entry.read_invitation(10) == b"come"


def test_a_process_that_ends_is_known_unless_it_has_arrived(roster: Roster) -> None:
    roster.invite(b"come")
    with entered(1), entered(3):
        with entered(2):
            assert roster.ended(arrived=()) == []
        assert roster.ended(arrived=()) == [2]
        assert roster.ended(arrived=[2]) == []


def test_a_process_that_ends_before_its_hello_was_read_is_known(roster: Roster) -> None:
    with entered(2):
        pass
    roster.invite(b"come")
    assert roster.ended(arrived=()) == [2]


def test_a_process_that_tries_again_has_not_ended(roster: Roster) -> None:
    roster.invite(b"come")
    with entered(2):
        pass
    with entered(2):
        assert roster.ended(arrived=()) == []


@pytest.mark.parametrize(
    "hello",
    [b"", b"GET / HTTP/1.1\r\nHost: everyrank\r\n\r\n", struct.pack("!16sI", b"everyrank roster", 4), b"everyrank"],
    ids=["silent", "http", "no-such-number", "half"],
)
def test_a_stranger_gets_no_invitation_and_is_nobody(roster: Roster, port: int, hello: bytes) -> None:
    roster.invite(b"come")
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(hello)
        stranger.shutdown(socket.SHUT_WR)
        assert roster.ended(arrived=()) == []
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert roster.ended(arrived=()) == []


def test_a_controller_that_ends_is_known(roster: Roster) -> None:
    with entered(1) as entry:
        roster.close()
        with pytest.raises(ConnectionResetError, match="it ended before it had collected its tests"):
            entry.read_invitation(10)


def test_a_controller_that_does_not_listen_yet_is_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN", 0.01)
    with contextlib.closing(Entry(1)) as entry:
        assert entry.read_invitation(0.05) is None
        assert "refused" in entry.problem
        with contextlib.closing(Roster(port, size=2)) as roster:
            roster.invite(b"come")
            assert entry.read_invitation(0.05) is None  # connected, and not answered yet
            assert roster.ended(arrived=()) == []
            assert entry.read_invitation(10) == b"come"
