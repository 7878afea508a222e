"""Methods of a framework's objects that are led through an integration, and given back."""

from __future__ import annotations

from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class MethodPatch(partial[Any]):
    """Stands in the place of a method of one object. A copy or a pickle of the object has the method itself.

    Args:
        owner: The object.
        name: The method's.
        way: What is called instead, with the method and all that it is given.

    Raises:
        AttributeError: There is no such method, or none can be put in its place.
    """

    _original: Any
    _before: Any
    _owner: Any
    _name: str

    def __new__(cls, owner: Any, name: str, way: Callable[..., Any]) -> MethodPatch:  # noqa: PYI034  Self came with Python 3.11
        original = getattr(owner, name)
        led = super().__new__(cls, way, original)
        update_wrapper(led, original, updated=())
        led._original, led._before = original, vars(owner).get(name)
        led._owner, led._name = owner, name
        setattr(owner, name, led)
        return led

    def __init__(self, *_: object) -> None:
        """All is done."""

    def give_back(self) -> None:
        """Put the method in its place again, unless another has come on top, who goes on through this."""
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
