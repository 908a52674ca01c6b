"""A wrong option or ini key is refused with one line that names the values it may have."""

from __future__ import annotations

import pytest

from tests.inner import Project

OPTIONS = {
    "--launcher=slurm": "ERROR: --launcher: must be one of fork, spawn, torchrun, ray, not 'slurm'",
    "--leaks=loud": "argument --leaks: invalid choice: 'loud' (choose from",
    "--world-seed=x": "argument --world-seed: invalid int value: 'x'",
    "--pdb-rank=-1": "ERROR: --pdb-rank must be a rank, 0 or more, not -1",
    "-oeveryrank_launcher=slurm": "ERROR: ini key everyrank_launcher: must be one of fork, spawn, torchrun, ray, not",
    "-oeveryrank_leaks=loud": "ERROR: ini key everyrank_leaks: must be one of report, fail, off, not 'loud'",
    "-oeveryrank_rank_cores=half": "ERROR: ini key everyrank_rank_cores: must be one of all, share, not 'half'",
    "-oeveryrank_world_size=four": "ERROR: ini key everyrank_world_size: must be a whole number, not 'four'",
    "-oeveryrank_world_size=2.5": "ERROR: ini key everyrank_world_size: must be a whole number, not '2.5'",
    "-oeveryrank_adopt=maybe": "ERROR: ini key everyrank_adopt: must be true or false: invalid truth value 'maybe'",
    "-oeveryrank_world_size=0": (
        "ERROR: ini key everyrank_world_size: a world size must be a whole number of ranks, 1 or more, not 0\n"
    ),
    "-oeveryrank_timeout=soon": "ERROR: ini key everyrank_timeout: must be a number of seconds, not 'soon'",
    "-oeveryrank_timeout=-1": "ERROR: ini key everyrank_timeout: must be a number of seconds above 0, not -1",
    "-oeveryrank_timeout=nan": "ERROR: ini key everyrank_timeout: must be a number of seconds above 0, not nan",
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_wrong_option_is_refused_before_anything_runs(project: Project, option: str) -> None:
    project.write("test_inner.py", "def test_on_ranks(world): pass\ndef test_single(): pass\n")
    refused = project.run(option)
    assert refused.code == pytest.ExitCode.USAGE_ERROR
    assert OPTIONS[option] in refused.out
    assert "Traceback" not in refused.out
