"""Measured values that wait for the user's next push and travel with it."""

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any

from trackside.device_scalars import DeviceScalars

# Internal key, which is never sent: nonzero if a gradient scaler skipped the step, so that its norms are discarded.
STEP_SKIPPED = "\0skipped"

MAX_CALLBACKS = 64  # limit of callbacks that wait for a push


class PendingValues:
    """Values that join the next push, and callbacks that run after it.

    Attributes:
        keys: Keys of all measured values so far, except those that are known to be overridden.
        overridden: Those that the user has pushed. The user's value counts: they are left out from then on.
        is_waiting: Values or callbacks wait for a push.
    """

    __slots__ = ("_callbacks", "_device", "_values", "is_waiting", "keys", "overridden")

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.overridden: set[str] = set()
        self.is_waiting = False
        self._values: dict[str, Any] = {}
        self._callbacks: list[Callable[[], object]] = []
        self._device: DeviceScalars | None = None

    def add(self, values: Mapping[str, Any]) -> None:
        """Add *values* to the next push; a newer value replaces an older one of the same key."""
        self.keys.update(values)
        self._values = {**self._values, **values}
        self.is_waiting = True

    def reserve(self, key: str) -> None:
        """Count *key* as measured, although another key (a local norm) may be sent in its place."""
        self.keys.add(key)

    def after_push(self, callback: Callable[[], object]) -> None:
        """Run *callback* after the next push, so that what it reports belongs to that push's step."""
        if len(self._callbacks) < MAX_CALLBACKS:
            self._callbacks.append(callback)
            self.is_waiting = True

    def read_later(self, scalars: Mapping[str, Any], then: Callable[[dict[str, float]], object]) -> None:
        """Call *then* with the numbers of tensors on a device once they have arrived, at the end at the latest."""
        if self._device is None:
            self._device = DeviceScalars(lambda _, then, numbers: then(numbers), lambda _: None)
        self._device.defer(monotonic_ns(), then, scalars)
        self.is_waiting = True

    def poll(self) -> None:
        """Deliver the numbers that have arrived from a device."""
        if self._device is not None:
            self._device.poll()

    def drain(self, seconds: float) -> float:
        """Wait at most *seconds* for numbers on a device and run the callbacks; return the seconds it took."""
        took = 0.0 if self._device is None else self._device.drain(seconds)
        self.run_callbacks()
        return took

    def join(self, named: dict[str, Any]) -> dict[str, Any]:
        """Return the user's numbers followed by the pending ones."""
        self.is_waiting = self._device is not None  # numbers of a device may arrive at any push
        if not self.keys.isdisjoint(named):
            self.overridden |= self.keys & named.keys()
            self.keys -= self.overridden  # so that the next push of them has nothing to join
        values, self._values = self._values, {}
        return {**named, **{key: value for key, value in values.items() if key not in self.overridden}}

    def filter_arrived(self, values: dict[str, float]) -> dict[str, float]:
        """Return what to keep of a row that arrived from a device: no gradient norms of a step marked `STEP_SKIPPED`."""
        if not values.pop(STEP_SKIPPED, 0.0):
            return values
        return {
            key: value
            for key, value in values.items()
            if key not in self.keys - self.overridden or not key.startswith("grad_norm")
        }

    def run_callbacks(self) -> None:
        """Run the callbacks of `after_push`."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
