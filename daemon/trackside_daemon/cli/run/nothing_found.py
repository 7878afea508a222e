"""The reason why a command of `trackside run` has opened no run, and the line that its script lacks."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from trackside.auto.environment import refusal
from trackside_daemon.captures.kineto.environment import interpreter
from trackside_daemon.linux.child_process import output
from trackside_daemon.linux.process_exit import signal_name

SCRIPT_BYTES = 256 * 1024  # of a script that are searched for what it imports
_CALLBACKS = {
    **dict.fromkeys(
        ("xgboost", "lightgbm", "catboost", "keras", "skorch", "transformers", "lightning"),
        "callbacks=[TracksideCallback()]",
    ),
    "fastai": "cbs=TracksideCallback()",
    "mmengine": "custom_hooks=[TracksideCallback()]",
    "ignite": "TracksideCallback().attach(trainer)",
    "ultralytics": "TracksideCallback().attach(model)",
}
"""Where a framework's callback of `trackside.integrations` belongs."""

_LOOPS = ("torch", "jax", "flax", "tensorflow", "sklearn", "mlx", "mxnet", "paddle")
_IMPORTS = re.compile(rf"^\s*(?:import|from)\s+({'|'.join((*_CALLBACKS, *_LOOPS))})\b".encode(), re.MULTILINE)
SECONDS = 10.0  # time limit for an interpreter to try the import

# A file of the working directory is no proof, and may be another user's.
_IMPORT = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; import trackside.default_run; print('here')"
)


def why_nothing(command: Sequence[str], code: int = 0, *, auto: bool) -> str:
    """Return the reason in one line, for a command that has opened no run and ended with this code, a signal below 0."""
    if not auto:
        return f"nothing was pushed; call trackside.push, or give --auto{_line_to_add(command)}"
    python = interpreter(command[0])
    if not python:
        return "nothing was pushed, and what it started imported neither PyTorch nor a tracker"
    is_script = Path(python).name != Path(command[0]).name
    if reason := refusal([] if is_script else command[1:]):
        return f"{reason}, by which --auto finds the training; leave the flag out, or call trackside.push"
    if output([python, "-c", _IMPORT], SECONDS).strip() != "here":
        ours = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"{python} cannot import trackside; install it there: {python} -m pip install trackside (this is {ours})"
    found = "no optimizer of PyTorch made a step, and no framework or tracker got a number"
    if code < 0:
        found += f", until at most a second before {signal_name(-code)} ended it"
    return f"{found}{_line_to_add(command)}"


def _line_to_add(command: Sequence[str]) -> str:
    """Return the line to add for what the script of a command imports, as far as its file shows; empty for nothing."""
    script = next((Path(word) for word in command if word.endswith(".py")), None)
    try:
        with (script or Path(os.devnull)).open("rb") as file:
            names = [name.decode() for name in _IMPORTS.findall(file.read(SCRIPT_BYTES))]
    except OSError:
        return ""
    if not names:
        return ""
    name = next((name for name in names if name in _CALLBACKS), names[0])
    line = "add trackside.push(step=step, loss=loss) where a step ends"
    if name in _CALLBACKS:
        line = f"add {_CALLBACKS[name]}, with from trackside.integrations.{name} import TracksideCallback"
    return f"; {name} is imported: {line}"
