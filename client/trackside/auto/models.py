"""The outermost modules of a process, as they are put together, and those of them that an optimizer trains."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MODELS = 32  # limit of modules that are timed


class Models:
    """The outermost modules of this process. None is kept alive."""

    def __init__(self) -> None:
        self._outer: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def parameter_registered(self, module: Any, *_: object) -> None:
        """Note a module that gets a parameter."""
        self._outer[id(module)] = module

    def module_registered(self, module: Any, _: str, part: Any) -> None:
        """Note a module that gets a part, which is none of the outermost any longer."""
        self._outer[id(module)] = module
        self._outer.pop(id(part), None)

    def of(self, optimizer: Any) -> list[Any]:
        """Return the outermost modules that have parameters of an optimizer."""
        modules = [reference() for reference in self._outer.valuerefs()]  # a copy at once: other threads may add some
        return trained([module for module in modules if module is not None], optimizer)


def trained(modules: Sequence[Any], optimizer: Any) -> list[Any]:
    """Return the modules that have parameters of an optimizer and are no parts of others."""
    known = {id(one) for group in optimizer.param_groups for one in group["params"]}
    found = [module for module in modules if any(id(one) in known for one in module.parameters())]
    parts = {id(part) for module in found for part in module.modules() if part is not module}
    return [module for module in found if id(module) not in parts][:MODELS]
