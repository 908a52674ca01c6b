"""A fault as text: what is understood, and what is refused in one sentence."""

from __future__ import annotations

import pytest
from everyrank.errors import MisuseError
from everyrank.faults.text import fault, faults
from everyrank.model.fault import CUTS, DIES, DROPS, EACH, EXITS, FILE, FLIPS, FULL, KEY, LATE, RAISES, WAITS, Fault

UNDERSTOOD = {
    "rank 1 dies at its 3rd collective": Fault(1, DIES, 3, "SIGKILL"),
    "rank 0 dies by SIGTERM after its 21st collective": Fault(0, DIES, 21, "SIGTERM", after=True),
    "rank 12 exits with 3 at its 1st collective": Fault(12, EXITS, 1, "3"),
    "rank 1 raises RuntimeError at its 2nd collective": Fault(1, RAISES, 2, "RuntimeError"),
    "rank 1 raises torch.distributed.DistNetworkError after its 11th collective": Fault(
        1, RAISES, 11, "torch.distributed.DistNetworkError", after=True
    ),
    "rank 0 waits 0.5 s before its 2nd collective": Fault(0, WAITS, 2, "0.5"),
    "rank 1 gets a flipped bit from its 4th collective": Fault(1, FLIPS, 4),
    "rank 1 is cut off at its 2nd collective": Fault(1, CUTS, 2),
    "rank 1 gets a late result from its 4th collective": Fault(1, LATE, 4),
    "rank 0 has a full disk at its 2nd file": Fault(0, FULL, 2, point=FILE),
    "rank 0 dies at its 2nd file": Fault(0, DIES, 2, "SIGKILL", point=FILE),
    "rank 0 waits 1 s before each file": Fault(0, WAITS, EACH, "1", point=FILE),
    "rank 1 drops its 1st key": Fault(1, DROPS, 1, point=KEY),
    "rank 1 drops each key": Fault(1, DROPS, EACH, point=KEY),
    "rank 1 exits with 0 after its 2nd key": Fault(1, EXITS, 2, "0", after=True, point=KEY),
    "rank 1 dies at each collective": Fault(1, DIES, EACH, "SIGKILL"),
    "rank 1 gets a flipped bit from each collective": Fault(1, FLIPS, EACH),
}


@pytest.mark.parametrize("text", UNDERSTOOD)
def test_a_text_is_understood_and_the_fault_states_it_again(text: str) -> None:
    assert fault(text) == UNDERSTOOD[text]
    assert fault(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "rank 1 explodes at its 3rd collective",
        "rank one dies at its 3rd collective",
        "rank 1 dies at its 3th collective",
        "rank 1 dies at its 0th collective",
        "rank 1 dies at its 3rd collective, please",
        "Rank 1 dies at its 3rd collective",
        "rank 1 waits 0.5 s after its 2nd collective",
        "rank 1 dies after its 2nd file",
        "rank 1 dies after each file",
        "rank 1 has a full disk at its 2nd collective",
        "rank 1 drops its 2nd collective",
        "rank 1 is cut off after its 2nd collective",
        "",
        3,
    ],
)
def test_any_other_text_is_refused_with_all_that_is_understood(text: object) -> None:
    with pytest.raises(MisuseError) as refused:
        fault(text)
    (sentence,) = str(refused.value).splitlines()
    assert sentence.startswith(f"the mark faults: {text!r} is not understood; what is understood is")
    assert all(f'"{known}"' in sentence for known in list(UNDERSTOOD)[:1])
    assert "waits 0.5 s before" in sentence
    assert "a flipped bit from" in sentence


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "takes texts such as"),
        (["rank 1 dies by SIGNOTHING at its 3rd collective"], "there is no signal SIGNOTHING here"),
        (["rank 1 exits with 256 at its 3rd collective"], "an exit code is at most 255, not 256"),
        (["rank 1 raises NoSuchError at its 3rd collective"], "NoSuchError cannot be raised with a text"),
        (["rank 1 raises int at its 3rd collective"], "int cannot be raised with a text"),
        (["rank 1 raises str at its 3rd collective"], "str is no exception"),
        (["rank 1 raises no.such.Error at its 3rd collective"], "No module named 'no'"),
        (
            ["rank 1 dies at each collective", "rank 0 dies at its 1st collective"],
            'a fault at each point, as in "each collective", stands alone',
        ),
        (
            ["rank 1 dies at its 2nd collective", "rank 1 waits 1 s before its 2nd collective"],
            "a rank has one fault at a point, not two",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        faults(texts)
