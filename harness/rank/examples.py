"""Lets Hypothesis draw the same examples on all ranks of a world, and stop at the first that fails.

A rank that tried an example which the others do not try would meet them in the wrong collective. So whatever depends
on the time or on what one rank alone has seen is switched off: shrinking, known examples, deadlines.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import pytest
from everyrank.model.ranks import rank_seed

_SEED, _SETTINGS = "_hypothesis_internal_use_seed", "_hypothesis_internal_use_settings"


@contextlib.contextmanager
def alike(item: pytest.Item) -> Iterator[None]:
    """In this context, let a test with ``@given`` draw what the other ranks draw."""
    __tracebackhide__ = True
    function: Any = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
    if "hypothesis" not in sys.modules or not getattr(function, "is_hypothesis_test", False):
        yield
        return
    handle = getattr(function, "hypothesis", None)
    if handle is None or not hasattr(function, _SETTINGS):
        pytest.fail(
            "a state machine of Hypothesis would take other steps on each rank: draw a list of steps with @given, or "
            "run the state machine in one process",
            pytrace=False,
        )
    seed = rank_seed(item.nodeid, item.config.getoption("world_seed"), 0)
    with pytest.MonkeyPatch.context() as patch, drawn_by_seed_alone():
        patch.setattr(function, _SETTINGS, _untimed(getattr(function, _SETTINGS)))
        patch.setattr(function, _SEED, _seed(function, seed), raising=False)
        patch.setattr(handle, "inner_test", _fails_once(handle.inner_test))
        yield


@contextlib.contextmanager
def drawn_by_seed_alone() -> Iterator[None]:
    """Keep Hypothesis from drawing the constants that it finds in the loaded modules of a project.

    It does so since 6.131, and then the same seed draws otherwise in a process that has imported other modules. There
    is no setting for it.
    """
    from hypothesis.internal.conjecture import providers as module

    providers: Any = module
    if not all(hasattr(providers, name) for name in ("_get_local_constants", "Constants", "CONSTANTS_CACHE")):
        yield
        return
    none = providers.Constants()
    providers.CONSTANTS_CACHE.cache.clear()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(providers, "_get_local_constants", lambda: none)
            yield
    finally:
        providers.CONSTANTS_CACHE.cache.clear()


def _untimed(settings: Any) -> Any:
    """Return a test's settings without all that may differ from rank to rank."""
    from hypothesis import HealthCheck, Phase
    from hypothesis import settings as Settings

    return Settings(
        parent=settings,
        database=None,
        deadline=None,
        phases=[phase for phase in settings.phases if phase in (Phase.explicit, Phase.generate)],
        report_multiple_bugs=False,
        suppress_health_check={*settings.suppress_health_check, HealthCheck.too_slow},
    )


def _seed(function: Any, seed: int) -> Any:
    """Return the seed that all ranks use, unless a decorator, a profile or an option has set one for all of them."""
    forced = getattr(sys.modules.get("hypothesis.core"), "global_force_seed", None)
    settled = forced is not None or getattr(function, _SETTINGS).derandomize
    decorator_seed = getattr(function, _SEED, None)
    return decorator_seed if decorator_seed is not None or settled else seed


def _fails_once(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Return the test's function so that it only raises its first failure once it has failed.

    Hypothesis runs an example that failed once more, to report it. Other ranks may have passed it, and go on.
    """
    from hypothesis.errors import StopTest, UnsatisfiedAssumption

    failure: list[tuple[BaseException, TracebackType | None]] = []

    @functools.wraps(inner)
    def run(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True
        if failure:
            error, traceback = failure[0]
            raise error.with_traceback(traceback)
        try:
            return inner(*arguments, **keywords)
        except (StopTest, UnsatisfiedAssumption):
            raise
        except BaseException as error:
            failure.append((error, error.__traceback__ and error.__traceback__.tb_next))
            raise

    return run
