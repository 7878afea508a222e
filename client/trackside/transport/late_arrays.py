"""Arrays of JAX that pushes left in their rows, since they were not computed yet: the sender thread reads them, in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from trackside.numbers import NUMBERS, read_number, refusal
from trackside.totals.session_totals import Deferred, SessionTotals

if TYPE_CHECKING:
    from collections.abc import Iterator

WAITING = 1024  # limit of pushes whose arrays wait, as these keep their memory


class LateArrays:
    """The arrays of one session that are not computed yet.

    Args:
        counts: Counts the values that are refused.

    Attributes:
        waiting: Time, step and arrays of each push, oldest first.
        waits: False at the end: then those that are not computed are refused.
    """

    def __init__(self, counts: SessionTotals) -> None:
        self.waiting: deque[tuple[int, Deferred, dict[str, Any]]] = deque()
        self.waits = True
        self._counts = counts

    def split(self, time: int, step: int | Deferred | None, values: dict[str, Any]) -> tuple[Any, dict[str, float]]:
        """Return the step of a row and the numbers that it has now; `arrived` yields the others."""
        arrays = {key: value for key, value in values.items() if type(value) not in NUMBERS}
        is_full = len(self.waiting) >= WAITING
        read = self._read(arrays, waits=not is_full) if is_full or not self.waiting else None
        if read is None:
            step = step if isinstance(step, Deferred) else Deferred(step, tuple(values))
            self.waiting.append((time, step, arrays))
        return step, {key: value for key, value in values.items() if key not in arrays} | (read or {})

    def arrived(self) -> Iterator[tuple[int, Deferred, dict[str, float]]]:
        """Yield a row for each push whose arrays are computed, oldest first."""
        while self.waiting and (numbers := self._read(self.waiting[0][2], waits=self.waits)) is not None:
            time, step, _ = self.waiting.popleft()
            yield time, step, numbers

    def _read(self, arrays: dict[str, Any], *, waits: bool) -> dict[str, float] | None:
        """Return the numbers of arrays, without those that are refused; None while one of them is waited for."""
        numbers, refused = dict[str, float](), dict[str, str]()
        for key, array in arrays.items():
            try:
                number = read_number(array)
            except Exception as error:  # noqa: BLE001  its device may have failed
                refused[key] = refusal(array, error)
                continue
            if type(number) in NUMBERS:
                numbers[key] = number
            elif waits:
                return None
            else:
                refused[key] = "it is not computed, and is waited for no longer"
        for key, reason in refused.items():
            self._counts.refuse(key, reason)
        return numbers
