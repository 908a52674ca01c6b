"""A failure in one line: its first line, and those lines of it that say how far off it is, and where."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from everyrank.reports.live.failure_message import failure_message

from tests.inner import Project
from tests.run_files import read

ONE_OFF = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 3.0, 4.001])


def _text(check: Callable[[], None]) -> str:
    """As pytest words the failure of a check."""
    with pytest.raises(AssertionError) as failed:
        check()
    return f"{failed.type.__name__}: {failed.value}"


def test_how_far_tensors_are_apart_and_where_comes_first() -> None:
    shown = failure_message(_text(lambda: torch.testing.assert_close(*ONE_OFF)))
    assert shown == (
        "AssertionError: Tensor-likes are not close! "
        "Greatest absolute difference: 0.0009999275207519531 at index (3,) (up to 1e-05 allowed); "
        "Greatest relative difference: 0.0002499193942639977 at index (3,) (up to 1.3e-06 allowed); "
        "Mismatched elements: 1 / 4 (25.0%)"
    )


def test_of_a_structure_the_item_that_differs_is_named() -> None:
    actual, expected = ({"bias": torch.zeros(2), "weight": tensor} for tensor in ONE_OFF)
    shown = failure_message(_text(lambda: torch.testing.assert_close(actual, expected)))
    assert "The failure occurred for item ['weight']; Greatest absolute difference: 0.00099" in shown


def test_both_scalars_are_shown() -> None:
    shown = failure_message(_text(lambda: torch.testing.assert_close(torch.tensor(1.0), torch.tensor(1.5))))
    assert shown == (
        "AssertionError: Scalars are not close! Expected 1.5 but got 1.0; "
        "Absolute difference: 0.5 (up to 1e-05 allowed); "
        "Relative difference: 0.3333333333333333 (up to 1.3e-06 allowed)"
    )


def test_numpys_empty_first_line_is_passed_over() -> None:
    numpy = pytest.importorskip("numpy")
    shown = failure_message(_text(lambda: numpy.testing.assert_allclose([1.0, 1.5], [1.0, 1.0])))
    assert shown.startswith("AssertionError: Not equal to tolerance rtol=1e-07, atol=0 Max absolute difference")
    assert "0.5" in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ""),
        ("assert 1 == 2", "assert 1 == 2"),
        ("ValueError: no\n\n  more of it", "ValueError: no"),
        ("[rank 1] ValueError: \n  could not load:\n  - a\n  - b", "[rank 1] ValueError: could not load: - a"),
        ("RuntimeError: these differ:\n\n", "RuntimeError: these differ:"),
    ],
)
def test_any_other_failure_shows_its_first_line_with_information(text: str, message: str) -> None:
    assert failure_message(text) == message


def test_the_run_file_states_on_one_line_how_far_off_a_rank_was(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import pytest, torch

        @pytest.mark.world(2)
        def test_close(world):
            ours = torch.ones(4)
            ours[3] += world.rank
            torch.testing.assert_close(ours, torch.ones(4))
        """,
    )
    project.run("--run-file=out.jsonl")
    assert read(project.folder / "out.jsonl")["test_close"]["message"] == (
        "[rank 1] AssertionError: Tensor-likes are not close! "
        "Greatest absolute difference: 1.0 at index (3,) (up to 1e-05 allowed); "
        "Greatest relative difference: 1.0 at index (3,) (up to 1.3e-06 allowed); Mismatched elements: 1 / 4 (25.0%)"
    )
