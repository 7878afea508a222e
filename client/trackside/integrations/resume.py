"""Let a framework load the checkpoint of a restart, where the training code names none."""

from __future__ import annotations

from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside.environment.restart import resume_path
from trackside.integrations.run_adapter import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def resume_by(owner: type, method: str, parameter: str, places: Callable[[Any], Iterable[Any]]) -> None:
    """Make a method load the checkpoint of `trackside.resume_path`; do nothing if there is none.

    Only the first call of the process is changed, if the caller gives no checkpoint or asks for the last, and only if the
    checkpoint lies in a directory of the object, since others may belong to another training.

    Args:
        owner: The framework's class.
        method: Name of its method.
        parameter: Name of the argument with the checkpoint: None, True and ``last`` name none.
        places: Returns the directories of an object.
    """
    path = resume_path()
    if path is None:
        return
    original, left = getattr(owner, method), [path]

    def changed(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = signature(original).bind(*given, **named)
        own = (Path(place).absolute() for place in places(given[0]) if place)
        if call.arguments.get(parameter) not in {None, True, "last"} or not any(
            map(path.absolute().is_relative_to, own)
        ):
            return given, named
        left.clear()
        call.arguments[parameter] = str(path)
        return call.args, call.kwargs

    @wraps(original)
    def resuming(*given: Any, **named: Any) -> Any:
        if left:
            given, named = guarded("the checkpoint of the restart", changed, given, named) or (given, named)
        return original(*given, **named)

    setattr(owner, method, resuming)
