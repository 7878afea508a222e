"""Replace methods of other libraries' classes by ones that also call a hook; results, exceptions and signatures stay."""

from __future__ import annotations

from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any

from trackside.auto.hooks import Hook, auto_run, report_failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def after(owner: Any, name: str, hook: str, work: Callable[..., object]) -> None:
    """Call *work* with the arguments of a method or function after each call of it that does not raise.

    Args:
        owner: Class or module of the method.
        name: Its name.
        hook: Name of the hook.
        work: The hook's work.

    Raises:
        AttributeError: There is no such method.
    """
    original, call = getattr(owner, name), Hook(hook, work)

    @wraps(original)
    def called(*given: Any, **named: Any) -> Any:
        result = original(*given, **named)
        call(*given, **named)
        return result

    setattr(owner, name, called)


def mute_within(owner: Any, name: str) -> None:
    """Ignore what trackers get during calls of a method: a framework passes on what is pushed already.

    Raises:
        AttributeError: There is no such method.
    """
    original = getattr(owner, name)

    @wraps(original)
    def called(*given: Any, **named: Any) -> Any:
        with muted():
            return original(*given, **named)

    setattr(owner, name, called)


def muted() -> AbstractContextManager[object]:
    """Return `AutoRun.muted`; after a failure to begin, a context that does nothing."""
    try:
        return auto_run().muted()
    except Exception as error:  # noqa: BLE001  training must go on
        report_failure("muted", error)
        return nullcontext()
