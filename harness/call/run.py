"""``everyrank.run``: call a function on each rank of a world, from a script or a notebook."""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
from _pytest.config import _prepareconfig
from everyrank.call import asked, torchrun
from everyrank.call.call import RunCall, location_of, name_of
from everyrank.call.plugin import CALL, OPTION, Ended
from everyrank.call.value import unpack
from everyrank.errors import MisuseError, RankLost, WorldFailed, WorldTimeout
from everyrank.launch.spawn import MadeInRank
from everyrank.model.counts import count
from everyrank.model.outcome import RULES, Rule
from everyrank.stack import paths

T = TypeVar("T")

#: pytest's plugins that do nothing for a single call, or change the caller's process.
_NOT_USED = ("cacheprovider", "faulthandler", "junitxml", "logging", "pastebin", "stepwise", "terminal", "tmpdir")
_NO_OTHER_PLUGIN = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
_SETTINGS = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", _NO_OTHER_PLUGIN)
#: What pytest says of an exception in our own frames alone.
_HIDDEN = "All traceback entries are hidden. Pass `--full-trace` to see hidden and internal frames.\n"


def run(
    function: Callable[[], T],
    ranks: int | None = None,
    *,
    group: bool = True,
    launcher: str | None = None,
    seed: int = 0,
    device: str | None = None,
    gpus: float | None = None,
    gpu_memory: int | str = 0,
    capability: tuple[int, int] | None = None,
    p2p: bool = False,
    spread: bool = False,
    backend: str | None = None,
    timeout: float | None = None,
    fresh: bool = False,
    **misspelt: NoReturn,
) -> list[T]:
    """Call a function on each rank of a world, and return what it returned there, by rank.

    The world has 2 ranks if ``ranks`` does not say otherwise. The arguments from ``device`` on are those of
    ``@pytest.mark.world``. The default process group is up while the function runs, unless ``group=False``. In a
    script that torchrun has started, the function runs on torchrun's ranks.

    If a rank fails, dies or waits for ever, raise WorldFailed; its text is the verdict that a test would have.
    """
    __tracebackhide__ = True
    if nodeid := os.environ.get("EVERYRANK_NODEID"):
        raise MisuseError(f"worlds do not nest, and this process is a rank of {nodeid!r}: call the function itself")
    asked.refuse(misspelt, list(inspect.signature(run).parameters)[1:-1])
    size = 2 if ranks is None else ranks
    asked.check(function, size, seed)
    world = {
        "device": device,
        "gpus": gpus,
        "gpu_memory": gpu_memory,
        "capability": capability,
        "p2p": p2p,
        "spread": spread,
        "backend": backend,
        "timeout": timeout,
        "fresh": fresh,
    }
    options = {**world, "seed": seed, "launcher": launcher}
    if torchrun.is_rank():
        return torchrun.run_here(function, ranks, group, options)
    call = RunCall(function, {**world, "size": size}, group, _line(function, size, options))
    if (file := location_of(function)[0]).startswith("<"):  # typed at a prompt, or `python -c`
        paths.add_typed(file)
    ended = Ended()
    code = _make(call, ended, launcher, seed)
    for message in ended.warnings:
        warnings.warn_explicit(message.message, message.category, message.filename, message.lineno)
    return [unpack(function, packed) for packed in _values(ended, code, size)]


def _line(function: Callable[[], Any], ranks: int, options: dict[str, Any]) -> str:
    """Return the call as a person would type it."""
    typed = "".join(f", {name}={value!r}" for name, value in options.items() if value)
    return f"everyrank.run({name_of(function)}, ranks={ranks}{typed})"


def _make(call: RunCall, ended: Ended, launcher: str | None, seed: int) -> int:
    """Let pytest run the call as its only test, with no plugin but ours, no file of the user's, and no report.

    Return pytest's exit status.
    """
    arguments = [
        *("-p", "everyrank.call.plugin", "-p", "everyrank"),
        *(part for name in _NOT_USED for part in ("-p", f"no:{name}")),
        *("-c", os.devnull, "--rootdir", os.getcwd(), "--noconftest", "--capture=no", "--assert=plain"),
        *("--world-seed", str(seed)),
        *(("--launcher", launcher) if launcher else ()),
        str(Path(__file__).parent / "on_ranks.py"),
    ]
    with _without_users_settings():
        config = _prepareconfig(arguments, [ended])
    config.stash[CALL] = call
    setattr(config.option, OPTION, MadeInRank(call.packed))
    try:
        code: int = config.hook.pytest_cmdline_main(config=config)
        return code
    except pytest.UsageError as error:
        raise MisuseError(str(error)) from None
    finally:
        config._ensure_unconfigure()


def _values(ended: Ended, code: int, size: int) -> list[bytes]:
    """Return what the ranks returned. If pytest has not ended well with a value of each rank, raise."""
    if isinstance(ended.left, (KeyboardInterrupt, pytest.exit.Exception)):
        raise ended.left.with_traceback(None)
    if ended.bad is not None:
        raise _error(ended.bad, ended.result["rule"]) from ended.left
    if code != pytest.ExitCode.OK or len(ended.returned) != size:
        raise RuntimeError(
            f"everyrank.run: pytest ended with {code!r}, and not with a value of each of {count(size, 'rank')}"
        ) from ended.left
    return ended.returned


@contextlib.contextmanager
def _without_users_settings() -> Iterator[None]:
    """Hide the variables by which a user changes every run of pytest, while pytest reads them."""
    before = {name: os.environ.pop(name, None) for name in _SETTINGS}
    os.environ[_NO_OTHER_PLUGIN] = "1"
    try:
        yield
    finally:
        del os.environ[_NO_OTHER_PLUGIN]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _error(report: pytest.TestReport, rule: str) -> BaseException:
    """Return the verdict as an error."""
    if hasattr(report, "wasxfail"):
        return pytest.xfail.Exception(report.wasxfail)
    if report.skipped:
        assert isinstance(report.longrepr, tuple)
        return pytest.skip.Exception(report.longrepr[2].removeprefix("Skipped: "))
    text = report.longreprtext.replace(_HIDDEN, "")
    if rule == Rule.REFUSED:
        return MisuseError(text.removeprefix("the mark world: "))
    kind = {"crash": RankLost, "timeout": WorldTimeout}.get(RULES.get(rule, ""), WorldFailed)
    return kind("\n" + text)
