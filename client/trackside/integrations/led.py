"""Methods of a framework's objects that are led through an integration, and given back."""

from __future__ import annotations

from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Led:
    """Stands in the place of a method of one object. A copy or a pickle of the object has the method itself.

    Args:
        owner: The object.
        name: The method's.
        way: What is called instead, with the method and all that it is given.

    Raises:
        AttributeError: There is no such method, or none can be put in its place.
    """

    def __init__(self, owner: Any, name: str, way: Callable[..., Any]) -> None:
        self._original = getattr(owner, name)
        self._before = vars(owner).get(name)
        self._owner, self._name, self._way = owner, name, way
        update_wrapper(self, self._original, updated=())
        setattr(owner, name, self)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._way(self._original, *given, **named)

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
