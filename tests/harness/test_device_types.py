"""A type of devices of an installed package: one module, and one line in its entry points."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch.utils.backend_registration
from everyrank.devices.protocol import Gpu
from everyrank.launch.protocol import Shape
from everyrank.resources.gpus.needs import Needs

from tests.inner import Inner, Project

pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch takes no type of devices that is written in Python",
)

TOYS = (Path(__file__).parents[1] / "samples" / "toy_devices.py").read_text()

SOURCE = """
    import os
    import pytest, torch
    import torch.distributed as dist

    def sees(toys, gpus=""):
        assert (os.environ["TOY_VISIBLE_DEVICES"], os.environ["CUDA_VISIBLE_DEVICES"]) == (toys, gpus)

    @pytest.mark.world(2, device="toy", gpus=2)
    def test_two(world, process_group, device):
        sees("TOY-a,TOY-b")
        assert device == torch.device("toy", world.rank)
        assert torch.toy.current == f"toy:{world.rank}"
        assert dist.get_backend() == world.backend == "tccl"
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.eq(2).all()

    @pytest.mark.world(2, device="toy")
    def test_seeds(world):
        assert torch.toy.seed == world.seed == torch.initial_seed()

    @pytest.mark.world(2, backend="tccl")
    def test_backend(world):
        sees("TOY-a,TOY-b")
        assert world.device == f"toy:{world.rank}"

    @pytest.mark.world(2, device="toy", gpus=1)
    def test_one_for_two(world):
        sees("TOY-a")
        assert (world.device, world.backend) == ("toy:0", "gloo")

    @pytest.mark.world(2, device="toy", gpus=0.5)
    def test_half(world):
        assert os.environ["TOY_VISIBLE_DEVICES"] in ("TOY-a", "TOY-b")

    @pytest.mark.world(2, gpus=1)
    def test_on_a_gpu(world):
        sees("", "GPU-0")
        assert (world.device, world.backend) == ("cuda:0", "gloo")

    @pytest.mark.world(2)
    def test_on_the_cpu(world):
        sees("")
        assert (world.device, world.backend) == ("cpu", "gloo")

    @pytest.mark.world(4, device="toy", gpus=4)
    def test_four(world): ...

    @pytest.mark.world(2, device="toy", gpu_memory="1GB")
    def test_memory(world): ...

    @pytest.mark.world(2, gpus=2)
    def test_two_gpus(world): ...

    @pytest.mark.world(4, backend="tccl", gpus=2)
    def test_too_few_for_the_backend(world): ...

    @pytest.mark.leaks("fail")
    @pytest.mark.world(1, device="toy")
    def test_leaves_memory(world, process_group):
        torch.toy.allocated = 4096

    @pytest.mark.leaks("fail")
    @pytest.mark.world(1, device="toy")
    def test_leaves_the_driver_open(world):
        os.open("toy-driver", os.O_RDWR | os.O_CREAT)
"""


def install(project: Project, source: str = TOYS, name: str = "toy") -> None:
    project.write("toy_devices.py", source)
    project.install("toy", "everyrank.devices", f"{name} = toy_devices:Toys")
    project.forks_keeper = True


def run(project: Project, *arguments: str) -> Inner:
    """Run the tests on a machine with two toys and one GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.setenv("EVERYRANK_DEVICES", "1")
        return project.run(*arguments)


@pytest.fixture(scope="module")
def ran(module_project: Project) -> Inner:
    install(module_project)
    module_project.write("test_inner.py", SOURCE)
    return run(module_project)


@pytest.mark.parametrize(
    "test",
    ["two", "seeds", "backend", "one_for_two", "half", "on_a_gpu", "on_the_cpu", "leaves_the_driver_open"],
)
def test_ranks_are_bound_to_the_devices_that_their_test_names(ran: Inner, test: str) -> None:
    ran.check(f"test_{test}", "passed")


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("four", "needs 4 TOYs, found 2"),
        ("memory", "needs 1 TOY with 1 GB, found 0 among 2"),
        ("two_gpus", "needs 2 GPUs, found 1"),
    ],
)
def test_a_need_that_is_not_met_is_a_skip_that_names_the_type(ran: Inner, test: str, reason: str) -> None:
    ran.check(f"test_{test}", "skipped", reason)
    assert f"1 ({reason})" in ran.out


def test_its_backend_takes_a_device_for_each_rank(ran: Inner) -> None:
    text = "backend='tccl' needs a TOY for each of the 4 ranks, and gpus=2 has fewer: write gpus=4"
    assert ran["test_too_few_for_the_backend"].text.splitlines() == [text]


def test_memory_that_is_left_is_a_leak(ran: Inner) -> None:
    ran.check("test_leaves_memory", "error", "GPU memory", "4096 bytes on toy:0")


def test_no_two_worlds_share_a_device(project: Project) -> None:
    install(project)
    project.write(
        "test_inner.py",
        """
        import os
        import pytest

        @pytest.mark.world(2, device="toy", gpus=2)
        @pytest.mark.parametrize("n", range(4))
        def test_alone(world, n):
            if world.rank == 0:
                os.mkdir("in-use")  # fails if another world has the toys
                os.rmdir("in-use")
        """,
    )
    inner = run(project, "-n", "2", "--fresh-worlds")
    assert Counter(inner.outcomes().values()) == {"passed": 4}
    assert list((project.folder / "leases").iterdir()) == []


def test_a_machine_with_fewer_devices_than_required_is_not_green(module_project: Project) -> None:
    """Those of all types count, and a test fails only for lack of those that this machine has."""
    install(module_project)
    module_project.write("test_inner.py", SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERYRANK_DEVICES", "0")
        inner = module_project.run("--require-gpus=4", "-k", "four or two_gpus")
    inner.check("test_four", "error", "needs 4 TOYs, found 2; with --require-gpus=4 this is not a skip")
    inner.check("test_two_gpus", "skipped", "needs 2 GPUs, found 0")
    assert "everyrank: --require-gpus=4, found 2: this run is not green" in inner.out


def test_no_rank_is_forked_from_a_process_that_has_used_them(project: Project) -> None:
    """A clean interpreter sees its devices before the test's file is imported."""
    install(project)
    project.write(
        "test_inner.py",
        """
        import os
        import pytest, torch, toy_devices

        AT_IMPORT = os.environ.get("TOY_VISIBLE_DEVICES")
        torch.toy.set_device("toy:0")

        @pytest.mark.world(2, device="toy", gpus=1)
        def test_sees(world):
            assert AT_IMPORT == "TOY-a"
        """,
    )
    inner = run(project)
    inner.check("test_sees", "passed")
    assert "--launcher=fork is not possible: TOY was initialised during collection" in inner.out


def test_the_doctor_has_a_line_for_each_type(project: Project) -> None:
    install(project)
    look = "from everyrank.doctor import software; print(*software.torch(), sep='\\n')"
    asked = project.python("-c", look)
    assert asked.returncode == 0, asked.stderr
    assert "Answer(name='TOYs', state='ok', text='2: a wooden block', advice='')" in asked.stdout
    assert "name='GPUs'" in asked.stdout


# --- what is wrong with a package, or with a mark ------------------------------------------------------


def test_a_mark_names_a_type_that_is_installed(project: Project) -> None:
    install(project)
    project.write("test_inner.py", 'import pytest\n@pytest.mark.world(2, device="xpu")\ndef test_x(world): ...\n')
    project.run().check("test_x", "error", "device must be 'cpu' or 'cuda' or 'toy', not 'xpu'")


@pytest.mark.parametrize(
    ("source", "name", "error"),
    [
        (
            "import no_such_module\n",
            "toy",
            "ERROR: everyrank: the device type 'toy' (toy_devices:Toys of toy) cannot be imported: "
            "ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            TOYS,
            "toys",
            "ERROR: everyrank: the device type 'toys' calls itself 'toy': its entry point needs that name",
        ),
    ],
    ids=["cannot be imported", "another name"],
)
def test_a_package_that_is_wrong_ends_the_run(project: Project, source: str, name: str, error: str) -> None:
    install(project, source, name)
    project.write("test_inner.py", "def test_x(world): ...\n")
    inner = project.run()
    assert error in inner.out
    assert inner.outcomes() == {}


def test_the_devices_of_several_hosts_are_of_the_type_that_a_world_needs() -> None:
    there = [Gpu("GPU-a"), Gpu("TOY-a", type="toy"), Gpu("GPU-b")]
    assert [gpu.uuid for gpu in Needs(1, 1, type="toy").suitable(there)] == ["TOY-a"]
    assert str(Shape(2, gpus=Needs(2, 2))) == "2 ranks with a GPU each"
