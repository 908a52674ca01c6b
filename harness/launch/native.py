"""Read the C frames of processes on this host with pystack, if it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time

from everyrank.wire.truncate import one_line

#: A C frame as pystack writes it.
_NATIVE_FRAME = re.compile(
    r'^\s+\(C\) File "(?P<file>.*)", line (?P<line>\d+), in '
    r"(?P<function>.*?)(?: \(inlined\))? \((?P<library>[^()]*)\)$"
)

#: Frames between Python and the function that it calls, six or so for each call: they state nothing.
_GLUE = "pybind11::"


def reader_path() -> str:
    """Return the path of the program that reads C frames, or ""."""
    beside = os.path.join(os.path.dirname(sys.executable), "pystack")
    return beside if os.access(beside, os.X_OK) else shutil.which("pystack") or ""


def read(pids: dict[int, int | None], within: float) -> dict[int, tuple[str, ...]]:
    """Return the C frames of these ranks, or why they cannot be read."""
    reader = reader_path()
    if not reader:
        return {}
    until = time.monotonic() + within
    running = {
        rank: subprocess.Popen(
            [reader, "remote", "--native-last", "--no-color", str(pid)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        for rank, pid in pids.items()
        if pid
    }
    frames = {}
    for rank, process in running.items():
        try:
            text, _ = process.communicate(timeout=max(0.01, until - time.monotonic()))
            frames[rank] = frames_in(text, pids[rank])
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            frames[rank] = (f"(not known: pystack took longer than {within:g} s)",)
    return frames


def frames_in(text: str, pid: int | None, most: int = 24) -> tuple[str, ...]:
    """Return the main thread's C frames in pystack's output, innermost first."""
    frames: list[str] = []
    in_main_thread = False
    for line in text.splitlines():
        if _GLUE in line:
            continue
        if line.startswith("Traceback for thread"):
            in_main_thread = line.split()[3] == str(pid)
        elif in_main_thread and (match := _NATIVE_FRAME.match(line)):
            source = f"at {os.path.basename(match['file'])}:{match['line']}" if match["line"] != "0" else ""
            location = source or f"in {os.path.basename(match['library'])}"
            frames.append(f"{one_line(match['function'], 100)} {location}")
    if "Traceback for thread" not in text:
        return (f"(not known: {one_line(text.strip().rsplit(chr(10), 1)[-1] or 'pystack printed nothing')})",)
    return tuple(frames[::-1][:most])


def below_handlers(frames: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a process did as a signal came, without the frames of the signal's handlers."""
    handlers = [number for number, frame in enumerate(frames) if frame.startswith("__restore_rt ")]
    return frames[handlers[-1] + 1 :] if handlers else frames
