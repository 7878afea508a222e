"""Failures of what is measured, each in one line."""

from __future__ import annotations

import traceback


class TargetError(Exception):
    """Nothing to measure was found; the message is one line with the remedy."""


def reason(error: BaseException) -> str:
    """Return an error in one line, with the place in the user's code where it was raised."""
    if isinstance(error, TargetError):
        return str(error)
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "/trackside/benchmark/" not in frame.filename
    ]
    place = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    text = " ".join(str(error).split())[:200]
    memory = "out of memory: " if is_out_of_memory(error) else ""
    return f"{memory}{place}{type(error).__name__}" + (f": {text}" if text else "")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is one of too little memory, on the host or a device."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text
