"""What each test of ``suite/hunted.py`` comes to when none of its processes is killed."""

from __future__ import annotations

from dataclasses import dataclass

#: A test ends with an outcome of its own, or is killed, within this many seconds.
DEADLINE = 20


@dataclass(frozen=True)
class Truth:
    """The outcome of an untouched test as the run file has it, and a text that its message must have."""

    outcome: str
    message: str = ""
    size: int = 2  # 0: it has no world, and so no line in the run file

    @property
    def is_red(self) -> bool:
        return self.outcome in ("fail", "timeout", "error", "crash")


def _numbered(name: str, count: int, truth: Truth) -> dict[str, Truth]:
    return {f"{name}[{number}]": truth for number in range(count)}


#: In the order of the file.
TRUTHS: dict[str, Truth] = {
    **_numbered("test_group", 4, Truth("pass")),
    "test_fails_on_one_rank": Truth("fail", "planted on one rank"),
    "test_barrier": Truth("pass", size=3),
    "test_waits_for_a_peer": Truth("timeout", "all_reduce"),
    "test_skips": Truth("skipped", "planted skip"),
    "test_xfails": Truth("known", "planted"),
    **_numbered("test_fresh", 2, Truth("pass")),
    "test_has_a_child": Truth("pass"),
    "test_own_groups": Truth("pass", size=3),
    "test_rpc": Truth("pass"),
    "test_raises_while_a_peer_waits": Truth("fail", "planted error"),
    "test_in_one_process": Truth("pass", size=0),
    "test_some_skip": Truth("fail", "only some of them skipped"),
    **_numbered("test_again", 4, Truth("pass")),
    "test_fails_in_one_process": Truth("fail", size=0),
    "test_last": Truth("pass"),
}
