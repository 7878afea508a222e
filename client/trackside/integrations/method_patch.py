"""Replace a method of one of a framework's objects, and put it back."""

from __future__ import annotations

from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class MethodPatch(partial[Any]):
    """Replaces a method of one object. A copy or a pickle of the object has the original method.

    Args:
        owner: The object.
        name: Name of the method.
        replacement: Called instead, with the original method and the arguments.

    Raises:
        AttributeError: There is no such method, or it cannot be replaced.
    """

    _original: Any
    _before: Any
    _owner: Any
    _name: str

    def __new__(cls, owner: Any, name: str, replacement: Callable[..., Any]) -> MethodPatch:  # noqa: PYI034  Self came with Python 3.11
        original = getattr(owner, name)
        patch = super().__new__(cls, replacement, original)
        update_wrapper(patch, original, updated=())
        patch._original, patch._before = original, vars(owner).get(name)
        patch._owner, patch._name = owner, name
        setattr(owner, name, patch)
        return patch

    def __init__(self, *_: object) -> None:
        """Do nothing: `__new__` has done everything, as for any `partial`."""

    def restore(self) -> None:
        """Put the original method back, unless another patch lies on top and still calls this one."""
        if vars(self._owner).get(self._name) is not self:
            return
        if self._before is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._before)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any]]:
        return _itself, (self._original,)


def _itself(method: T) -> T:
    return method
