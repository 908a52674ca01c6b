"""Subjects from elsewhere that do all that a contract asks for, and nothing else, are green."""

from __future__ import annotations

import pytest

from tests.engines import one_run
from tests.inner import Inner

_REPLICATES = """
    import torch.distributed as dist
    from everyrank.fixtures.exemplars.replicate import replicate
    from everyrank.suites import Lack, Subject, conformance

    def bare(module):
        return replicate(module)

    def settings(module, **options):
        return replicate(module, **Settings(**options).chosen)

    class Settings:
        def __init__(self, broadcast_buffers=True):
            self.chosen = {"broadcast_buffers": broadcast_buffers}

    def grouped(module):
        return replicate(module, process_group=dist.new_group())

    NO_OPTION = Lack(TypeError, "no such option")

    @conformance(Subject("bare", contract="replicate", build=bare, lacks={"ignored[*]": NO_OPTION}))
    def test_bare(case): case.run()

    @conformance(Subject("declared", contract="replicate", build=bare, lacks={"parity.options[*]": NO_OPTION}))
    def test_declared(case): case.run()

    @conformance(Subject("settings", contract="replicate", build=settings))
    def test_settings(case): case.run()

    @conformance(Subject("grouped", contract="replicate", build=grouped))
    def test_grouped(case): case.run()
"""

_CHOSEN = (
    "unused[last-rank-ws2 or unused[everywhere-ws2 or uneven[two-ws2 or uneven[none-ws2 "
    "or errors.rank[forward-first-ws2 or errors.rank[between-last-ws3 "
    "or parity.options[small-buckets-ws2 or parity.options[all-ws2"
)
_OF_OPTIONS = {"parity.options[small-buckets-ws2]", "parity.options[all-ws2]"}

_SERVERS = """
    import torch
    from everyrank.fixtures.exemplars.parameter_server import BatchUpdateParameterServer
    from everyrank.suites import Subject, conformance

    class Server(BatchUpdateParameterServer):
        def __init__(self, module, trainers, optimizer, *, timeout=60.0, non_finite=True):
            super().__init__(module, trainers, optimizer, timeout=timeout, non_finite=non_finite)

        def check_gradient(self, label, parameter, gradient):
            if gradient.dtype != parameter.dtype:
                raise ValueError(f"expected {parameter.dtype}, got {gradient.dtype} for {label}")
            if gradient.shape != parameter.shape:
                raise ValueError(f"expected {list(parameter.shape)}, got {list(gradient.shape)} for {label}")
            super().check_gradient(label, parameter, gradient)

    @conformance(Subject("server", contract="parameter-server", build=Server))
    def test_server(case): case.run()
"""


replicates = one_run(_REPLICATES, "-W", "ignore", "--profile=full", "test_inner.py", "-k", _CHOSEN)


servers = one_run(
    {"test_servers.py": _SERVERS},
    *("-Wignore", "--profile=full", "test_servers.py", "--law=errors.gradient", "-kn2-ws1"),
)


@pytest.mark.parametrize("test", ["test_bare", "test_settings", "test_grouped"])
def test_a_replicate_without_options_keeps_the_laws_that_are_not_about_them(replicates: Inner, test: str) -> None:
    ends = replicates.endings(test)
    assert len(ends) == 8
    assert {case for case, outcome in ends.items() if outcome == "not-applicable"} == _OF_OPTIONS
    assert {outcome for case, outcome in ends.items() if case not in _OF_OPTIONS} == {"pass"}


def test_an_option_that_is_offered_may_still_be_declared_as_lacking(replicates: Inner) -> None:
    ends = replicates.endings("test_declared")
    assert {ends[case] for case in _OF_OPTIONS} == {"unsupported"}


def test_a_server_may_take_what_is_not_finite_until_it_is_asked_not_to_and_has_words_of_its_own(
    servers: Inner,
) -> None:
    ends = servers.endings("test_server")
    assert {"errors.gradient[nan-n2-ws1]", "errors.gradient[dtype-complex-n2-ws1]"} < set(ends)
    assert set(ends.values()) == {"pass"}
