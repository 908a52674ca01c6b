"""A keeper that another engine has put where ranks are to run. It obeys the controller over TCP.

It starts ranks by a launcher of its own host, which ends them with it. A rank's messages do not pass through here:
for each rank the keeper knocks at the controller's door, and gives the connection to the rank.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import msgspec
from everyrank.launch import processes
from everyrank.launch.keeper import pidfd
from everyrank.launch.local import LocalLauncher, LocalSeat
from everyrank.launch.protocol import CannotLaunch, LostLauncher
from everyrank.launch.remote.door import ERR, OUT, RANK, knock
from everyrank.launch.remote.run_folder import RunFolder
from everyrank.launch.rendezvous import reserved_port
from everyrank.wire.channel import Channel, Closed
from everyrank.wire.keepers import Close, Exited, Kill, NotStarted, Preload, Preloaded, Started
from everyrank.wire.remote import (
    AskPrinted,
    AskStacks,
    AskState,
    AskTests,
    Done,
    Forget,
    FreePort,
    Goodbye,
    Halt,
    Interrupt,
    LostRanks,
    Port,
    Printed,
    Ready,
    RemoveFolder,
    ReservePort,
    Stacks,
    StartSeat,
    State,
    Tests,
    ToRemoteKeeper,
)

#: The exit code of a keeper whose controller is gone.
CONTROLLER_GONE = 1

#: After its goodbye, the controller ends within this many seconds.
_CONTROLLER_ENDS = 30.0


@dataclass(frozen=True)
class Invitation:
    """What the engine hands to the processes of a run: where the controller is, and how to prove that we belong."""

    address: tuple[str, int]
    secret: bytes
    folder: str  # the run's folder on the controller's host


class RemoteKeeper:
    """Keeps the ranks of one process of the engine.

    ``launch`` starts the launcher of this host; it is called again if that is lost. If the first cannot be started,
    ``CannotLaunch`` is raised. ``folder`` is the run's, as this host has it. ``nodeids`` are the tests that this
    process has collected. The keeper ends with the process ``engine``, too, if it is given.
    """

    def __init__(
        self,
        control: Channel[ToRemoteKeeper],
        invitation: Invitation,
        folder: RunFolder,
        launch: Callable[[], LocalLauncher],
        nodeids: Sequence[str] = (),
        engine: int | None = None,
    ) -> None:
        self._control = control
        self._invitation = invitation
        self._folder = folder
        self._launch = launch
        self._nodeids = nodeids
        self._seats: dict[int, LocalSeat] = {}
        self._halted: dict[int, str] = {}  # the states of ranks before they were stopped
        self._ports: dict[int, contextlib.ExitStack] = {}
        self._preloading = False
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._engine = pidfd(engine) if engine is not None else None
        if self._engine is not None:
            self._selector.register(self._engine, selectors.EVENT_READ)
        self._launcher = self._relaunch()
        if self._launcher.lost:
            raise CannotLaunch(_lost_at_start(self._launcher))

    def serve(self, ready: Ready) -> int:
        """Obey until the controller says goodbye, or is gone. Return the exit code."""
        try:
            self._control.send(msgspec.structs.replace(ready, pid=os.getpid()))
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj == self._engine:
                        return CONTROLLER_GONE
                    if key.fileobj is not self._control:
                        if not self._closed:  # the order to close may have come just before
                            self._pass_on()
                        continue
                    for message in self._control.arrived():
                        if isinstance(message, Goodbye):
                            self._close()
                            self._await_controller()
                            return message.exit_code
                        self._obey(message)
        except Closed:
            self._close(controller_is_gone=True)
            return CONTROLLER_GONE
        finally:
            self._close()

    def _await_controller(self) -> None:
        """Wait until the controller has ended: an engine may end all of its processes as soon as one has failed."""
        with contextlib.suppress(ValueError):  # this is not the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._control.read_to_end(_CONTROLLER_ENDS)

    def _close(self, controller_is_gone: bool = False) -> None:
        if not self._closed:
            self._closed = True
            if not self._launcher.lost:
                self._selector.unregister(self._launcher.fileno())
            self._launcher.close()
        self._folder.leave(controller_is_gone)

    def _relaunch(self) -> LocalLauncher:
        launcher = self._launch()
        launcher.run_folder = self._folder.path
        if not launcher.lost:
            self._selector.register(launcher.fileno(), selectors.EVENT_READ)
        return launcher

    # --- orders ------------------------------------------------------------------------------------

    def _obey(self, message: msgspec.Struct) -> None:
        match message:
            case StartSeat():
                self._start(message)
            case Kill(numbers):
                self._launcher.kill([self._seats[number] for number in numbers if number in self._seats])
            case Interrupt(number):
                if seat := self._seats.get(number):
                    seat.interrupt()
            case Forget(number):
                if seat := self._seats.pop(number, None):
                    seat.close()
            case RemoveFolder(name):
                shutil.rmtree(os.path.join(self._folder.path, name), ignore_errors=True)
            case FreePort(port):
                self._ports.pop(port).close()
            case Preload():
                self._preloading = True
                self._launcher.preload(message)
            case Close():
                self._close()
                self._control.send(Done(0))
            case _:
                self._control.send(self._answer(message))

    def _answer(self, question: msgspec.Struct) -> msgspec.Struct:
        match question:
            case Halt(request, numbers):
                self._halted = processes.stop(self._asked(numbers))
                return Done(request)
            case AskStacks(request, numbers, native_within):
                asked = processes.ask(self._asked(numbers), native_within, self._halted)
                return Stacks(
                    request,
                    {
                        number: (stack.text, stack.state, stack.native, [astuple(child) for child in stack.children])
                        for number, stack in asked.items()
                    },
                )
            case AskState(request, number):
                seat = self._seats.get(number)
                if seat is None or seat.gone:
                    return State(request, 0.0, False, True)
                return State(request, *seat.processor_time(), seat.is_ending(), seat.waited_for_core())
            case AskPrinted(request, number):
                seat = self._seats.get(number)
                return Printed(request, seat.printed() if seat else [], seat.stacks_text() if seat else "")
            case ReservePort(request):
                with contextlib.ExitStack() as stack:
                    _, port = stack.enter_context(reserved_port())
                    self._ports[port] = stack.pop_all()
                return Port(request, port)
            case AskTests(request):
                return Tests(request, list(self._nodeids))
        raise AssertionError(question)

    def _start(self, message: StartSeat) -> None:
        if problem := self._try_again():
            self._control.send(NotStarted(message.number, problem))
            return
        kinds = [RANK, OUT, ERR] if message.live else [RANK]
        connections: list[socket.socket] = []
        try:
            for kind in kinds:
                visitor = (kind, message.number)
                connections.append(knock(self._invitation.address, self._invitation.secret, visitor))
        except OSError as error:
            for connection in connections:
                connection.close()
            self._control.send(NotStarted(message.number, str(error)))
            return
        seat = self._launcher.start_connected(message.name, connections)
        self._seats[message.number] = seat
        if self._launcher.lost:
            self._lose(self._launcher.lost)

    def _try_again(self) -> str:
        """Start the launcher again if the last one died at its start. Return why it died again, or ""."""
        if self._launcher.lost:
            self._launcher = self._relaunch()
        return _lost_at_start(self._launcher) if self._launcher.lost else ""

    def _asked(self, numbers: list[int]) -> dict[int, processes.AskedProcess]:
        return {number: self._seats[number].asked for number in numbers if number in self._seats}

    # --- reports -----------------------------------------------------------------------------------

    def _pass_on(self) -> None:
        """Report to the controller which ranks have started and ended."""
        numbers = {seat: number for number, seat in self._seats.items()}
        for event in self._launcher.events():
            if isinstance(event, LostLauncher):
                self._lose(event.reason)
                return
            assert isinstance(event, LocalSeat)
            if (number := numbers.get(event)) is None:
                continue
            if (report := _report(number, event)) is not None:
                self._control.send(report)
        if self._preloading and not self._launcher.preloading:
            self._preloading = False
            self._control.send(Preloaded())

    def _lose(self, reason: str) -> None:
        """Go on with a new launcher. No test has run in this process, so it can fork again."""
        title = self._launcher.keeper_title
        for key in list(self._selector.get_map().values()):
            if key.fileobj not in (self._control, self._engine):
                self._selector.unregister(key.fileobj)
        lost = list(self._seats)
        self._seats.clear()
        self._control.send(LostRanks(f"its {title} {reason}", lost))
        if self._preloading:
            self._preloading = False
            self._control.send(Preloaded())
        self._launcher = self._relaunch()


def _report(number: int, seat: LocalSeat) -> NotStarted | Exited | Started | None:
    if seat.lost:
        return NotStarted(number, seat.lost)
    if seat.status is not None:
        return Exited(number, seat.status)
    return Started(number, seat.pid) if seat.pid is not None else None


def _lost_at_start(launcher: LocalLauncher) -> str:
    return f"its {launcher.keeper_title} {launcher.lost} at its start, and its own output says why"


def use_interface_of(connection: socket.socket) -> None:
    """Let gloo and TensorPipe use the interface by which this process reaches the controller."""
    name = interface_of(connection.getsockname()[0])
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("TP_SOCKET_IFNAME", name)


def interface_of(address: str) -> str:
    """Return the interface that has this IPv4 address, or "" if that is not known."""
    if not sys.platform.startswith("linux") or ":" in address:
        return ""
    import fcntl

    get_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(asking, get_address, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""
