"""Scripts one after the other in a process whose imports are watched, as by the start-up module; arguments as for in_turn.py.

Each script has a run of its own. PyTorch is imported before, by a fork server, as it is in a process that is attached to. With
``$BROKEN``, every hook raises, also those of modules that a script imports.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import NoReturn

import trackside
from trackside.auto import method_wrapping, pytorch, training
from trackside.auto.hooks import LibraryHook
from trackside.auto.startup.trackside_imports import watch
from trackside.auto.startup.trackside_patched_methods import PATCHED_METHODS

THEN = "--then--"  # as in tests/integrations/in_turn.py


def broken(*_: object, **__: object) -> NoReturn:
    raise ArithmeticError("broken")


class BrokenHook(LibraryHook):
    """A hook whose work raises."""

    __slots__ = ()

    def __init__(self, name: str, work: object) -> None:
        del work
        super().__init__(name, broken)


if __name__ == "__main__":
    if os.environ.get("BROKEN"):
        for module in (method_wrapping, pytorch, training):
            vars(module)["LibraryHook"] = BrokenHook
    watch(PATCHED_METHODS)
    left = sys.argv[1:]
    while left:
        end = left.index(THEN) if THEN in left else len(left)
        sys.argv, left = left[:end], left[end + 1 :]
        runpy.run_path(sys.argv[0], run_name="__main__")
        trackside.finish()
        if left:
            print(THEN, flush=True)  # noqa: T201
