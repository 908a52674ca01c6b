"""The launcher ``torchrun``: every process that torchrun started keeps one rank of a world.

The process of rank 0 is the controller: it runs pytest as usual, and the verdict is made and written there, once. The
others collect the same tests and keep ranks for it. All end with the same exit code. The store of torchrun's agent
hands them the address and the secret of the controller; without an agent the controller does it (``roster.py``).
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from everyrank.devices import device_types
from everyrank.errors import MisuseError
from everyrank.launch import fork
from everyrank.launch.keeper import remove_traces
from everyrank.launch.protocol import CannotLaunch, LaunchContext, Launcher, Member
from everyrank.launch.remote import alike, interrupts, run_folder
from everyrank.launch.remote.door import KEEPER, Door, knock, new_secret
from everyrank.launch.remote.keeper import Invitation, RemoteKeeper, use_interface_of
from everyrank.launch.remote.launcher import RemoteLauncher
from everyrank.launch.remote.link import Link, introduced
from everyrank.launch.remote.roster import Entry, Roster
from everyrank.launch.remote.run_folder import RunFolder
from everyrank.patience import Patience
from everyrank.wire import torchrun_variables
from everyrank.wire.channel import Channel
from everyrank.wire.remote import Ready, ToRemoteKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

#: All processes must have collected their tests within this many seconds of the first.
_COLLECT = 600.0
#: A wait for other processes that is longer than this many seconds is reported.
_SILENT = 10.0

_KEY = "everyrank/invitation"
_ROSTER = pytest.StashKey[Roster]()
_USAGE = "torchrun --nproc-per-node=4 -m pytest --launcher=torchrun"


def configure(config: pytest.Config) -> Member | None:
    """Check how this process was started. Return its membership, unless it is the controller."""
    missing, needed = torchrun_variables.missing(), torchrun_variables.NEEDED
    if len(missing) == len(needed):
        raise pytest.UsageError(f"--launcher=torchrun: torchrun did not start this process; say {_USAGE}")
    if missing:
        raise pytest.UsageError(
            f"--launcher=torchrun: the environment is only half set: {', '.join(missing)} is missing. torchrun sets "
            f"{', '.join(needed)}"
        )
    if getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
        raise pytest.UsageError("--launcher=torchrun: the ranks are torchrun's processes: leave out -n")
    if config.getoption("usepdb", False) or config.getoption("trace", False):
        raise pytest.UsageError("--launcher=torchrun: a debugger needs the ranks on this host: use --launcher=fork")
    if torchrun_variables.rank() == 0:
        if not torchrun_variables.has_agent():
            config.stash[_ROSTER] = _open_roster(config)
        return None
    member = TorchrunMember(None if torchrun_variables.has_agent() else Entry(torchrun_variables.rank()))
    # By this name plugins know a process that collects only to run ranks: it reports and writes nothing.
    config.pluginmanager.register(member, "everyrank-spawned")
    return member


def _open_roster(config: pytest.Config) -> Roster:
    _, port = torchrun_variables.address()
    try:
        roster = Roster(port, torchrun_variables.size())
    except OSError as error:
        raise pytest.UsageError(
            f"--launcher=torchrun: process 0 cannot listen at MASTER_PORT, {port}, where the others look for it: "
            f"{error}; name a port that is free"
        ) from None
    config.add_cleanup(roster.close)
    return roster


def launch(context: LaunchContext) -> Launcher:
    """Wait for the other processes that torchrun started, and check that they have the same tests."""
    session, secret = context.session, new_secret()
    folder = context.new_folder()
    run_folder.mark(folder, secret)
    own_ready = alike.describe(session, torchrun_variables.node(), folder)
    door = Door(_address(), secret)
    invitation = Invitation(door.address, secret, folder)
    roster = session.config.stash.get(_ROSTER, None)
    own = _fork_keeper(context, invitation, door, roster)
    try:
        letter = json.dumps([door.address, secret.hex(), folder, _base_folder(session)])
        store = None
        if roster is not None:
            roster.invite(letter.encode())
        else:
            store = _store()  # it may start a thread: after the fork
            store.set(_KEY, letter)
        links = _admitted(door, own_ready, own, roster)
    except BaseException:
        _end_alone(own, door, folder)
        raise
    launcher = TorchrunLauncher(folder, door, links, context.print_live, own, store)
    try:
        alike.check(own_ready, [(link.name, link.ready) for link in links])
        alike.check_tests(session, own_ready, links)
    except MisuseError:
        launcher.close()
        launcher.say_goodbye(pytest.ExitCode.USAGE_ERROR)
        raise
    session.config.pluginmanager.register(launcher, "everyrank-torchrun")
    return launcher


def _admitted(door: Door, own_ready: Ready, own: int, roster: Roster | None) -> list[Link]:
    """Let all processes in, by their keepers."""
    size = torchrun_variables.size()
    ended: list[int] = []
    reported_at = time.monotonic() + _SILENT

    def hopeless() -> bool:
        nonlocal reported_at
        arrived = {number for _, number in door.arrived()}
        if roster is not None:
            ended[:] = roster.ended(arrived)
        if time.monotonic() >= reported_at:
            reported_at = math.inf
            missing = ", ".join(str(number) for number in range(size) if number not in arrived)
            _report(f"waits for the processes {missing}, at most {_COLLECT:g} s")
        return bool(ended) or _has_ended(own)

    came = door.admit({(KEEPER, number) for number in range(size)}, Patience(_COLLECT), hopeless)
    if _has_ended(own):
        raise MisuseError("the keeper of this process's ranks ended at its start; it says above why")
    if ended:
        numbers = f"process {ended[0]}" if len(ended) == 1 else f"processes {', '.join(map(str, ended))}"
        raise MisuseError(f"{numbers} of torchrun ended before the first test: the output there says why")
    if late := [str(number) for number in range(size) if (KEEPER, number) not in came]:
        raise MisuseError(
            f"of torchrun's processes, {', '.join(late)} did not come within {_COLLECT:g} s: they ended or hang; "
            "their output says more"
        )
    if roster is not None:
        roster.close()
    return [_link(number, came[KEEPER, number], own_ready) for number in range(size)]


def _end_alone(own: int, door: Door, folder: str) -> None:
    """Leave nothing behind if the processes have not met."""
    door.close()  # our keeper may wait there
    with contextlib.suppress(ProcessLookupError):
        os.kill(own, signal.SIGKILL)
    os.waitpid(own, 0)
    remove_traces(folder)


class TorchrunLauncher(RemoteLauncher):
    """The controller's side of torchrun's processes."""

    def __init__(self, folder: str, door: Door, links: list[Link], live: bool, own: int, store: Any) -> None:
        super().__init__("torchrun", folder, door, links, live, forks=True)
        self._own = own  # the keeper of this process
        self._store = store  # the others need it to read their invitation

    def say_goodbye(self, exit_code: int) -> None:
        super().say_goodbye(exit_code)
        self.links[0].channel.close()
        os.waitpid(self._own, 0)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Hand the exit code of the run to all processes, once it is certain."""
        try:
            return (yield)
        finally:
            self.say_goodbye(int(session.exitstatus))


class TorchrunMember(Member):
    """A process of torchrun that is not the controller. It collects in silence.

    Without an agent it has an entry in the controller's roster, by which each learns that the other has ended.
    """

    def __init__(self, entry: Entry | None) -> None:
        self._entry = entry
        self._printed = io.StringIO()
        self._terminal: Any = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            self._terminal = reporter._tw._file
            reporter._tw._file = self._printed

    def connects(self) -> bool:
        """Connect to the controller, if it listens already. Return whether there is a connection."""
        return self._entry is not None and self._entry.try_again()

    def pytest_collectstart(self) -> None:
        self.connects()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self) -> None:
        self.connects()

    def pytest_unconfigure(self) -> None:
        if self._terminal is not None:  # it has not come to its service: show why
            self._terminal.write(self._printed.getvalue())

    def serve(self, context: LaunchContext) -> int:
        try:
            invitation, base = _read(_invitation_of_store() if self._entry is None else _invitation_of(self._entry))
            connection = knock(invitation.address, invitation.secret, (KEEPER, torchrun_variables.rank()), _COLLECT)
        except (OSError, MisuseError) as error:
            _report(f"cannot reach the controller: {error}")
            return int(pytest.ExitCode.INTERNAL_ERROR)
        if self._entry is not None:
            self._entry.close()
        return _keep(context, invitation, connection, base)


def _invitation_of_store() -> str:
    store = _store()
    letter: bytes = _patiently(lambda: store.get(_KEY))
    return letter.decode()


def _invitation_of(entry: Entry) -> str:
    """Wait for the controller, which may still collect. It is known at once if it ends, if it had begun to listen."""
    letter = entry.read_invitation(_SILENT)
    if letter is None:
        _report(f"waits for the controller at {_master()}, at most {_COLLECT:g} s")
        letter = entry.read_invitation(_COLLECT)
    if letter is None:
        problem = f" ({entry.problem})" if entry.problem else ""
        raise MisuseError(f"it did not answer at {_master()} within {_COLLECT:g} s: it ended, or hangs{problem}")
    return letter.decode()


def _read(letter: str) -> tuple[Invitation, str]:
    """Return the controller's invitation, and its folder of pytest's temp folders."""
    address, secret, folder, base = json.loads(letter)
    return Invitation((address[0], address[1]), bytes.fromhex(secret), folder), base


def _report(text: str) -> None:
    print(f"everyrank: process {torchrun_variables.rank()} of torchrun {text}", file=sys.stderr, flush=True)


def _base_folder(session: pytest.Session) -> str:
    """Return the folder of pytest's temp folders, if there is one."""
    factory: Any = getattr(session.config, "_tmp_path_factory", None)
    return str(factory.getbasetemp()) if factory is not None else ""


def _keep(context: LaunchContext, invitation: Invitation, connection: socket.socket, base: str = "") -> int:
    """Keep ranks for the controller until it says goodbye. They share ``base`` with it if they see its files."""
    use_interface_of(connection)
    session = context.session
    control: Channel[ToRemoteKeeper] = Channel(connection, ToRemoteKeeper)
    ready = alike.describe(session, torchrun_variables.node(), "", gpus=device_types.all_found())
    try:
        folder = RunFolder(invitation.folder, invitation.secret)
        factory: Any = getattr(session.config, "_tmp_path_factory", None)
        if not folder.id and factory is not None and base and os.path.isdir(base):
            factory._basetemp = Path(base)
        ready = msgspec.structs.replace(ready, folder=folder.path, folder_id=folder.id)
        keeper = RemoteKeeper(control, invitation, folder, lambda: fork.launch(context), alike.nodeids(session))
    except (CannotLaunch, MisuseError) as problem:
        control.send(msgspec.structs.replace(ready, problem=str(problem)))
        return int(pytest.ExitCode.USAGE_ERROR)
    interrupts.leave_to_controller()
    code = keeper.serve(ready)
    # After its goodbye the controller has ended, too: a signal may have come while it removed the folder.
    folder.leave(controller_is_gone=True)
    return code


def _fork_keeper(context: LaunchContext, invitation: Invitation, door: Door, roster: Roster | None) -> int:
    """Fork the keeper of this process. It runs no tests, so it can fork ranks all the time."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            door.close()  # only the controller holds it, so that it ends with it
            if roster is not None:
                roster.close()
            code = _keep(context, invitation, _let_in(invitation))
        except BaseException as error:
            print(
                f"everyrank: the keeper of process 0 of torchrun ended: {type(error).__name__}: {error}",
                file=sys.__stderr__,
            )
        finally:
            os._exit(code)
    return pid


def _let_in(invitation: Invitation) -> socket.socket:
    """Go through the controller's door. If that ends before it opens, so has the controller: remove its folder."""
    try:
        return knock(invitation.address, invitation.secret, (KEEPER, 0), 2 * _COLLECT)
    except OSError:
        remove_traces(invitation.folder)
        raise


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _link(number: int, connection: socket.socket, own_ready: Ready) -> Link:
    channel, ready = introduced(f"process {number} of torchrun", connection)
    return Link(f"process {number} of torchrun on {ready.host}", channel, ready, own_ready.boot)


def _store() -> Any:
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = _patiently(lambda: next(rendezvous("env://", timeout=timedelta(seconds=_COLLECT))))
    return store


def _patiently(wait: Callable[[], Any]) -> Any:
    """Wait for the other processes. Report a long wait, let Ctrl-C end it, and state in a sentence how it failed.

    torch waits where no handler of a signal can run, so it gets a thread.
    """
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(wait())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    others = f"the other processes at {_master()}"
    with contextlib.suppress(FutureTimeout):
        future.exception(_SILENT)
    if not future.done():
        _report(f"waits for {others}, at most {_COLLECT:g} s")
    try:
        return future.result()
    except RuntimeError as error:  # torch's DistError
        reason = str(error).partition("\n")[0]
        raise MisuseError(
            f"process {torchrun_variables.rank()} did not meet {others}: one of them ended before it "
            f"had collected its tests, or cannot be reached ({reason})"
        ) from None


def _address() -> str:
    """Return this host's address at which the other processes can reach it."""
    family, _, _, _, target = socket.getaddrinfo(*torchrun_variables.address(), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing
        address: str = probe.getsockname()[0]
    return address


def _master() -> str:
    host, port = torchrun_variables.address()
    return f"{host}:{port}"
