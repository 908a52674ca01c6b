"""Code that opens its process group itself, as under torchrun, runs in ranks; and the hints for tests that fail."""

from __future__ import annotations

import socket
from datetime import timedelta

import expecttest
import pytest
from everyrank.launch.rendezvous import reserved_port

from tests.engines import elsewhere, one_run
from tests.inner import Inner, Project

TRAIN = """
    import argparse, os
    import torch
    import torch._dynamo  # DDP imports it, which takes seconds: import it once, before the ranks are forked
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def main(arguments=None):
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=2)
        options = parser.parse_args(arguments)
        dist.init_process_group("gloo")
        rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
        assert local_rank == rank == int(os.environ["RANK"])
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(3, 1))
        for _ in range(options.steps):
            batch = torch.full((2, 3), rank + 1.0)
            model.zero_grad()
            model(batch).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
        weight = model.module.weight.detach()
        del model  # before the group: see docs/findings/gloo-destructor.md
        dist.destroy_process_group()
        return weight
"""

SOURCE = """
    import importlib, os, sys
    import pytest, torch
    import torch.distributed as dist
    from torch.distributed import rpc
    from torch.distributed.device_mesh import init_device_mesh
    import train

    @pytest.mark.world([1, 2, 3])
    def test_main(world):
        world.all_agree(train.main(["--steps", "2"]))

    @pytest.mark.world(3)
    def test_main_is_called_twice(world):
        world.all_agree([train.main(["--steps=1"]), train.main(["--steps=1"])])

    @pytest.mark.world(3)
    def test_a_group_is_opened_and_destroyed_many_times_without_a_barrier(world):
        for _ in range(20):
            dist.init_process_group("gloo")
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == 3
            dist.destroy_process_group()

    @pytest.mark.world(2)
    def test_what_torchrun_sets_is_set(world):
        assert os.environ["MASTER_ADDR"] == "127.0.0.1"
        world.all_agree(int(os.environ["MASTER_PORT"]))
        assert dist.is_torchelastic_launched()
        for name in ("RANK", "LOCAL_RANK", "ROLE_RANK"):
            assert os.environ[name] == str(world.rank)
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"):
            assert os.environ[name] == "2"
        assert (os.environ["GROUP_RANK"], os.environ["GROUP_WORLD_SIZE"]) == ("0", "1")

    @pytest.mark.leaks("off")  # libuv keeps a pipe
    @pytest.mark.world(2)
    def test_a_store_on_the_port(world):
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, world.size, world.rank == 0)
        store.set(str(world.rank), "came")
        store.wait(["0", "1"])
        world.barrier()

    @pytest.mark.world(2)
    def test_a_group_by_tcp_on_the_port(world):
        method = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
        dist.init_process_group("gloo", init_method=method, rank=world.rank, world_size=world.size)
        dist.barrier()
        dist.destroy_process_group()

    @pytest.mark.world(2)
    def test_a_group_on_a_port_of_the_tests_own(world, monkeypatch, free_port):
        monkeypatch.setenv("MASTER_PORT", str(free_port))
        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()

    @pytest.fixture
    def free_port(world):
        # torch finds the port, rank 0 shares it
        store = dist.FileStore(os.path.join(world.folder, "port"), world.size)
        if world.rank == 0:
            store.set("port", str(dist.TCPStore("127.0.0.1", 0, 1, True).port))
        port = int(store.get("port"))
        world.barrier()
        return port

    @pytest.mark.world(2)
    def test_a_mesh_that_opens_the_group(world):
        mesh = init_device_mesh("cpu", (2,))
        total = torch.ones(1)
        dist.all_reduce(total, group=mesh.get_group())
        assert total.item() == 2
        dist.destroy_process_group()

    @pytest.mark.world(2)
    def test_a_module_that_binds_the_open_group(world):
        sys.modules.pop("torch.distributed.nn.functional", None)
        dist.init_process_group("gloo")
        importlib.import_module("torch.distributed.nn.functional")
        dist.destroy_process_group()

    @pytest.mark.world(2)
    def test_an_agent_by_default_arguments(world):
        rpc.init_rpc(f"worker{world.rank}", rank=world.rank, world_size=world.size)
        assert rpc.rpc_sync(f"worker{1 - world.rank}", os.getpid) != os.getpid()
        rpc.shutdown()
"""

FAILS = """
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.world(2)
    def test_without_a_group():
        dist.all_reduce(torch.ones(1))

    @pytest.fixture(scope="module")
    def model():
        return dist.get_world_size()

    @pytest.mark.world(2)
    def test_wider(model):
        pass

    @pytest.mark.world(2)
    def test_two_groups(process_group):
        dist.init_process_group("gloo")

    @pytest.fixture(scope="module")
    def wide_group(process_group):
        pass

    @pytest.mark.world(2)
    def test_wide_group(wide_group):
        pass
"""


@pytest.mark.parametrize("launcher", ["fork", elsewhere("spawn")])
def test_code_for_torchrun_runs_in_ranks_and_leaves_nothing(project: Project, launcher: str) -> None:
    project.write("train.py", TRAIN)
    project.write("test_inner.py", SOURCE)
    inner = project.run(f"--launcher={launcher}", "--leaks=fail", "-rA", "-W", "ignore::DeprecationWarning")
    assert set(inner.outcomes().values()) == {"passed"}, inner.out
    assert len(inner.outcomes()) == 12
    assert [warning for warning in inner.warnings if warning["warning"] == "LeakWarning"] == []


def test_tests_in_one_warm_world_open_their_groups_one_after_another(project: Project) -> None:
    project.write("train.py", TRAIN)
    project.write(
        "test_inner.py",
        """
        import os
        import pytest, train

        @pytest.mark.world(2)
        @pytest.mark.parametrize("number", range(8))
        def test_main(world, number):
            with open(os.path.join(os.path.dirname(__file__), "seen"), "a") as file:
                print(world.rank, os.getpid(), os.environ["MASTER_PORT"], file=file)
            train.main([])
        """,
    )
    inner = project.run()
    assert set(inner.outcomes().values()) == {"passed"}, inner.out
    seen = [line.split() for line in (project.folder / "seen").read_text().splitlines()]
    assert len({port for _, _, port in seen}) == 8
    assert all(len({rank for rank, _, other in seen if other == port}) == 2 for _, _, port in seen)


def test_a_reserved_port_is_given_to_no_other_process_but_lets_torchs_store_listen() -> None:
    from torch.distributed import TCPStore

    with reserved_port() as (_, port), reserved_port() as (_, other):
        assert port != other
        with socket.socket() as neighbour, pytest.raises(OSError, match="in use"):
            neighbour.bind(("127.0.0.1", port))
        for use_libuv in (True, False):
            store = TCPStore("127.0.0.1", port, 1, True, timedelta(seconds=20), use_libuv=use_libuv)
            store.set("key", "value")
            assert store.get("key") == b"value"
            del store


failing = one_run(FAILS)


class TestHints(expecttest.TestCase):
    @pytest.fixture(autouse=True)
    def _run(self, failing: Inner) -> None:
        self.inner = failing

    def hint(self, test: str) -> str:
        _, _, rest = self.inner[test].text.partition(" hint ")
        assert rest, self.inner[test].text
        return "\n".join(line for line in rest.partition("\n")[2].partition("\n---")[0].splitlines())

    def test_a_collective_without_a_group_names_the_fixture(self) -> None:
        self.assertExpectedInline(
            self.hint("test_without_a_group"),
            """\
No process group is open on this rank. Let the test ask for the fixture `process_group`, or call
torch.distributed.init_process_group() itself: the variables that env:// reads are set.""",
        )

    def test_a_group_wanted_by_a_wider_fixture(self) -> None:
        self.assertExpectedInline(
            self.hint("test_wider"),
            """\
No process group is open on this rank. `process_group` lives for one test: give the fixture that failed the
scope `function`, and let it ask for `process_group`.""",
        )

    def test_a_second_default_group(self) -> None:
        self.assertExpectedInline(
            self.hint("test_two_groups"),
            """\
The fixture `process_group` has opened the default group already. For code that calls init_process_group()
itself, let the test ask for `world` instead.""",
        )

    def test_a_wider_fixture_that_asks_for_the_fixture(self) -> None:
        self.assertExpectedInline(
            self.inner["test_wide_group"].text.replace(", which", ",\nwhich"),
            """\
the module fixture 'wide_group' asks for the rank fixture 'process_group',
which lives in a rank, for one test: make 'wide_group' a function fixture""",
        )
