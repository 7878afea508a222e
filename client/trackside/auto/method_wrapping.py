"""Replace methods of other libraries by ones that also call a hook; results, exceptions and signatures stay."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import reduce, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trackside.auto.hooks import LibraryHook, auto_run, report_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager


def replace_methods(module: str, methods: Iterable[tuple[str, str]]) -> None:
    """Replace methods of an imported module, as `PATCHED_METHODS` has them, until one fails."""
    try:
        for method, replacement in methods:
            *owners, name = method.split(".")
            owner = reduce(getattr, owners, sys.modules[module])
            file, function = replacement.split(".")
            replace = getattr(import_module(f"trackside.auto.{file}"), function)
            setattr(owner, name, replace(getattr(owner, name), f"{module}: {method}"))
    except Exception as error:  # noqa: BLE001  a version that has other names, for example
        report_failure(module, error)


def after(work: Callable[..., object]) -> Callable[[Any, str], Any]:
    """Make a replacement that calls *work* with a method's arguments after each call that does not raise."""

    def replace(original: Any, hook: str) -> Any:
        call = LibraryHook(hook, work)

        @wraps(original)
        def called(*given: Any, **named: Any) -> Any:
            result = original(*given, **named)
            call(*given, **named)
            return result

        return called

    return replace


def muting(original: Any, hook: str) -> Any:
    """Ignore what trackers get during calls of a method: a framework passes on what is pushed already."""

    @wraps(original)
    def called(*given: Any, **named: Any) -> Any:
        with muted():
            return original(*given, **named)

    return called


def muted() -> AbstractContextManager[object]:
    """Return `AutoRun.muted`; after a failure to begin, a context that does nothing."""
    try:
        return auto_run().muted()
    except Exception as error:  # noqa: BLE001  training must go on
        report_failure("muted", error)
        return nullcontext()
