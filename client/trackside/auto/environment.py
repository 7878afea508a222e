"""The environment of a command whose trainings are monitored without a change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AUTO = "TRACKSIDE_AUTO"
STARTUP = str(Path(__file__).parent / "startup")

_REASONS = {"I": "ignores $PYTHONPATH", "E": "ignores $PYTHONPATH", "S": "imports no sitecustomize"}


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set: the start-up module comes first on ``$PYTHONPATH``, and the others stay on it."""
    others = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != STARTUP]
    return {AUTO: "1", "PYTHONPATH": os.pathsep.join([STARTUP, *others])}


def refusal(arguments: Sequence[str]) -> str:
    """Return why a Python with these arguments runs no start-up module, by its flags before the script; empty if it does.

    Args:
        arguments: All that follows the name of the interpreter: ``-I``, ``-uE``, ``-X dev``, the script.
    """
    words = iter(arguments)
    for word in words:
        if not word.startswith("-") or word.startswith("--") or word == "-":
            break
        if word in {"-W", "-X"}:
            next(words, None)
            continue
        for letter in word[1:]:
            if letter in _REASONS:
                return f"Python with -{letter} {_REASONS[letter]}"
            if letter in "cm":
                return ""
            if letter in "WX":  # the rest of the word is its value
                break
    return ""
