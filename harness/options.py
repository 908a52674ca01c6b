"""The options and ini keys of the harness."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from everyrank.declare.values import is_seconds, sizes
from everyrank.errors import MisuseError
from everyrank.launch.launchers import BUILT_IN, names
from everyrank.resources import cores

LEAKS = ("report", "fail", "off")
TRANSPORTS = ("auto", "torch")


@dataclass(frozen=True)
class MutateOptions:
    """What ``--mutate`` and its kin ask for."""

    budget: float  # seconds
    seed: int
    floor: float


@dataclass(frozen=True)
class Options:
    """The options of the command line and the ini file, checked."""

    launcher: str
    size: int
    timeout: float
    fresh: bool
    run_alone: bool
    leaks: str
    death_stacks: bool
    seed: int
    pdb_rank: int | None
    require_gpus: int
    adopt: bool
    adopt_transports: str
    preload: bool
    rank_cores: str
    mutate: MutateOptions | None


def add(parser: pytest.Parser) -> None:
    group = parser.getgroup("everyrank", "everyrank: one test on many ranks")
    group.addoption(
        "--launcher",
        metavar="NAME",
        default=None,
        help="how ranks are started: fork, spawn, torchrun, ray, or a launcher of an installed package "
        "(default: fork)",
    )
    group.addoption(
        "--ray-address",
        metavar="ADDRESS",
        default=None,
        help="with --launcher=ray: the cluster (default: RAY_ADDRESS, or a cluster of this host alone)",
    )
    group.addoption(
        "--ray-working-dir",
        metavar="FOLDER",
        default=None,
        help="with --launcher=ray: copy this folder to each node, and run the tests there (default: the nodes see "
        "this machine's files)",
    )
    group.addoption(
        "--rank-cores",
        choices=cores.CHOICES,
        default=None,
        help="with -n: the ranks of each worker run on all cores, or on the worker's share of them (default: all)",
    )
    group.addoption("--fresh-worlds", action="store_true", help="new processes for each multi-rank test")
    group.addoption(
        "--no-run-alone",
        dest="run_alone",
        action="store_false",
        help="do not repeat, in a fresh world, a test that failed in a warm one",
    )
    group.addoption(
        "--death-stacks",
        action="store_true",
        help="read the C frames of a rank that dies by a signal such as SIGSEGV, just before it ends (needs pystack)",
    )
    group.addoption("--leaks", choices=LEAKS, default=None, help="what to do about leaks on ranks (default: report)")
    group.addoption("--world-seed", type=int, default=0, metavar="N", help="vary the seeds of all ranks")
    group.addoption(
        "--pdb-rank",
        type=int,
        default=None,
        metavar="RANK",
        help="the rank in which --pdb and breakpoint() open the debugger",
    )
    group.addoption(
        "--require-gpus",
        type=int,
        default=0,
        metavar="N",
        help="this machine must have N GPUs: a test that is skipped for lack of them fails",
    )
    group.addoption(
        "--adopt",
        action="store_true",
        help="run test cases that are written for torch.testing._internal, and what tests spawn by mp.spawn, on "
        "everyrank's ranks",
    )
    group.addoption(
        "--adopt-transports",
        choices=TRANSPORTS,
        default=None,
        help="the RPC agents of adopted tests use a transport that waits asleep if ranks outnumber cores (auto, the "
        "default), or always the transport that torch chooses (torch)",
    )
    group.addoption(
        "--mutate",
        action="store_true",
        help="run each green multi-rank test again with one of its collectives changed at a time, and report the "
        "changes that it does not notice",
    )
    group.addoption(
        "--mutate-budget",
        metavar="TIME",
        default=None,
        help="with --mutate: at most this much time for all changed tests together (default: 60s)",
    )
    group.addoption(
        "--mutate-seed", metavar="N", type=int, default=0, help="with --mutate: draws another sample (default: 0)"
    )
    parser.addini("everyrank_mutate", "the part of its changes that a test must notice under --mutate", default="0")
    parser.addini("everyrank_adopt", "the same as --adopt, for every run", type="bool", default=False)
    parser.addini("everyrank_adopt_transports", "auto or torch", default="auto")
    parser.addini("everyrank_world_size", "ranks of a multi-rank test whose mark names no size", default="2")
    parser.addini(
        "everyrank_timeout",
        "seconds for a multi-rank test that pytest-timeout does not govern",
        default="300",
    )
    parser.addini(
        "everyrank_launcher", "fork, spawn, torchrun, ray, or a launcher of an installed package", default="fork"
    )
    parser.addini(
        "everyrank_preload",
        "import the modules that tests import on ranks in the process that ranks are forked from",
        type="bool",
        default=True,
    )
    parser.addini("everyrank_rank_cores", "all or share", default=cores.ALL)
    parser.addini("everyrank_leaks", "report, fail or off", default="report")


def read(config: pytest.Config) -> Options:
    """Return the options of this run. A wrong value raises a UsageError that names the valid values."""
    try:
        size = sizes(_number(config, "everyrank_world_size", int, "a whole number"))[0]
    except MisuseError as error:
        raise pytest.UsageError(f"ini key everyrank_world_size: {error}") from None
    timeout = _number(config, "everyrank_timeout", float, "a number of seconds")
    if not is_seconds(timeout):
        raise pytest.UsageError(f"ini key everyrank_timeout: must be a number of seconds above 0, not {timeout:g}")
    rank = config.getoption("pdb_rank")
    if rank is not None and rank < 0:
        raise pytest.UsageError(f"--pdb-rank must be a rank, 0 or more, not {rank}")
    return Options(
        launcher=_launcher(config),
        size=size,
        timeout=timeout,
        fresh=config.getoption("fresh_worlds"),
        run_alone=config.getoption("run_alone"),
        death_stacks=config.getoption("death_stacks"),
        leaks=_choice(config, "leaks", LEAKS),
        seed=config.getoption("world_seed"),
        pdb_rank=rank,
        require_gpus=_not_negative(config.getoption("require_gpus"), "--require-gpus"),
        adopt=config.getoption("adopt") or _truth(config, "everyrank_adopt"),
        adopt_transports=_choice(config, "adopt_transports", TRANSPORTS),
        preload=_truth(config, "everyrank_preload"),
        rank_cores=_choice(config, "rank_cores", cores.CHOICES),
        mutate=_mutate(config),
    )


def _mutate(config: pytest.Config) -> MutateOptions | None:
    budget = config.getoption("mutate_budget")
    if not config.getoption("mutate"):
        if budget is not None:
            raise pytest.UsageError("--mutate-budget is the time for --mutate, which was not given")
        return None
    if config.getoption("usepdb", False):
        raise pytest.UsageError("--mutate runs tests that are meant to fail: leave out --pdb")
    floor = _floor(text := str(config.getini("everyrank_mutate")))
    if floor is None:
        raise pytest.UsageError(f"ini key everyrank_mutate: must be a number from 0 to 1, not {text!r}")
    return MutateOptions(_seconds(budget or "60s"), config.getoption("mutate_seed"), floor)


def _seconds(text: str) -> float:
    """Read a budget such as 60s, 2m or 90."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", text.strip())
    if match is None or not float(match[1]):
        raise pytest.UsageError(f"--mutate-budget must be a time above 0 such as 60s or 2m, not {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _floor(text: str) -> float | None:
    try:
        floor = float(text)
    except ValueError:
        return None
    return floor if 0 <= floor <= 1 else None


def mutate_floor(item: pytest.Item, options: MutateOptions) -> float:
    """Return the part of its mutants that this test must notice: the mark decides, otherwise the ini key."""
    mark = item.get_closest_marker("mutate")
    if mark is None:
        return options.floor
    floor = _floor(str(mark.kwargs["floor"])) if [*mark.kwargs] == ["floor"] and not mark.args else None
    if floor is None:
        raise MisuseError("the mark mutate takes a floor from 0 to 1: write mutate(floor=0.9)")
    return floor


def _launcher(config: pytest.Config) -> str:
    """Return the name of the launcher. Only a name that is not ours makes Python look for installed packages."""
    name = str(config.getoption("launcher") or config.getini("everyrank_launcher"))
    if name not in BUILT_IN and name not in (known := names()):
        key = "--launcher" if config.getoption("launcher") else "ini key everyrank_launcher"
        raise pytest.UsageError(f"{key}: must be one of {', '.join(known)}, not {name!r}")
    return name


def _not_negative(value: int, name: str) -> int:
    if value < 0:
        raise pytest.UsageError(f"{name} must be a number of GPUs, 0 or more, not {value}")
    return value


def leaks_action(item: pytest.Item, options: Options) -> str:
    """Return what to do about leaks of this test: the mark decides, otherwise the run's options."""
    mark = item.get_closest_marker("leaks")
    if mark is None:
        return options.leaks
    if len(mark.args) != 1 or mark.kwargs or mark.args[0] not in LEAKS:
        given = [*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())]
        written = ", ".join(f"leaks({action!r})" for action in LEAKS)
        raise MisuseError(f"the mark leaks takes one argument: write one of {written}, not leaks({', '.join(given)})")
    return str(mark.args[0])


def _choice(config: pytest.Config, name: str, choices: tuple[str, ...]) -> str:
    value = config.getoption(name) or config.getini(f"everyrank_{name}")
    if value not in choices:
        raise pytest.UsageError(f"ini key everyrank_{name}: must be one of {', '.join(choices)}, not {value!r}")
    return str(value)


def _truth(config: pytest.Config, key: str) -> bool:
    """Return a truth value of the ini file; pytest's own error would not name the key."""
    try:
        return bool(config.getini(key))
    except (ValueError, pytest.UsageError) as error:  # which of the two, pytest's version decides
        raise pytest.UsageError(f"ini key {key}: must be true or false: {error}") from None


def _number(config: pytest.Config, key: str, kind: type, meaning: str) -> float | int:
    value = config.getini(key)
    try:
        number: float | int = kind(value)
    except ValueError:
        raise pytest.UsageError(f"ini key {key}: must be {meaning}, not {value!r}") from None
    return number
