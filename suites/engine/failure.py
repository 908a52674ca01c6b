"""The text of a case that failed: the law, what the subject did, and what the deviation looks like."""

from __future__ import annotations

import os
import traceback

from everyrank.stack.frames import only_sees
from everyrank.suites.errors import FAULT, UNUSABLE, BrokenAdapter, Deviation, Unusable

#: The folder of everyrank's own files, whose frames say nothing about a subject.
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep


class Failed(AssertionError):
    """A case whose outcome is not the declared one. Its first line is the news; ``report`` is what a person reads."""

    def __init__(self, news: str, report: str) -> None:
        super().__init__(f"{news}\n\n{report}")
        self.news = news
        self.report = report


def fault(error: BrokenAdapter) -> str:
    """Return how the text of a case begins that says nothing about its law."""
    return UNUSABLE if isinstance(error, Unusable) else FAULT


def failure(verdict: str, case: str, law: str, text: str, error: BaseException | None) -> Failed:
    """Return the failure of a case, by its verdict, the case's name, its law's docstring, and what was seen."""
    news, seen = _seen(text, error)
    sentence = " ".join(law.partition("\n\n")[0].split())
    report = f"law: {sentence}\n[{verdict}] {case}\n  {seen}"
    return Failed(news, "\n\n".join([report, *_traceback_of(error)]))


def unusable(subject: str, contract: str, error: BrokenAdapter) -> Failed:
    """Return the failure of a subject that cannot be asked for any law."""
    report = f"[error] {subject}, before any law of {contract}\n  {fault(error)}: {error}"
    return Failed(f"{fault(error)}: {error}".splitlines()[0], "\n\n".join([report, *_frames(error.__cause__)]))


def _seen(text: str, error: BaseException | None) -> tuple[str, str]:
    """Return the news in one line, and the whole text, which begins with it."""
    first = text.partition("\n")[0]
    if not isinstance(error, Deviation):
        return first, text
    try:
        explanation = error.explanation()
    except Exception as problem:  # what is known of the deviation must not be lost
        return first, f"{text}\n  (what it looks like is not known: {type(problem).__name__}: {problem})"
    if explanation is None or explanation.location not in first:
        return first, text
    rest = text.removeprefix(f"{explanation.location}: ")
    return explanation.news, f"{explanation.news} ({explanation.pattern})\n  {rest}"


def _traceback_of(error: BaseException | None) -> list[str]:
    """Return the traceback that explains the error: of what the subject raised, or of a law that failed itself."""
    if isinstance(error, (Deviation, BrokenAdapter)):
        return _frames(error.__cause__)
    if error is None:
        return []
    return _frames(error) or ["".join(traceback.format_exception(error)).rstrip()]


def _frames(error: BaseException | None) -> list[str]:
    """Return the traceback of an error of the subject, without the kit's own frames at its start."""
    frame = error.__traceback__ if error is not None else None
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OURS):
        frame = frame.tb_next
    if error is None or frame is None:
        return []
    text = traceback.TracebackException(type(error), error, frame)
    _hide_watchers(text)
    return ["".join(text.format()).rstrip()]


def _hide_watchers(text: traceback.TracebackException | None) -> None:
    """Take out the frames that see torch's calls, here and in what caused the error."""
    while text is not None:
        text.stack[:] = [frame for frame in text.stack if not only_sees(frame.filename)]
        text = text.__cause__ or text.__context__
