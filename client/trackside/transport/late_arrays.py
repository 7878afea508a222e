"""Arrays of JAX that a push left in its row, since they were not computed yet: the sender thread reads them, in order.

The training's thread pays for a look at each array. It would pay many times that for the rest, with cold caches after a step.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from trackside.numbers import NUMBERS, NoNumberError, read_number
from trackside.totals.session_totals import Deferred, SessionTotals

if TYPE_CHECKING:
    from collections.abc import Iterator

WAITING = 1024  # limit of pushes whose arrays wait, as these keep their memory


class LateArrays:
    """The arrays of one session that are not computed yet.

    Args:
        counts: Counts the values that are refused.
    """

    def __init__(self, counts: SessionTotals) -> None:
        self._counts = counts
        self._waiting: deque[tuple[int, Deferred, dict[str, Any]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def split(
        self, time: int, step: int | Deferred | None, values: dict[str, Any]
    ) -> tuple[int | Deferred | None, dict[str, float]]:
        """Return the step of a row and the numbers that it has now; `arrived` yields those of its other arrays."""
        arrays = {key: value for key, value in values.items() if type(value) not in NUMBERS}
        numbers = {key: value for key, value in values.items() if key not in arrays}
        if not self._waiting and (read := self._read(arrays)) is not None:
            return step, numbers | read
        if len(self._waiting) >= WAITING:
            self._refuse(dict.fromkeys(arrays, f"the arrays of {WAITING} pushes are not computed yet"))
            return step, numbers
        step = step if isinstance(step, Deferred) else Deferred(step, tuple(values))
        self._waiting.append((time, step, arrays))
        return step, numbers

    def arrived(self) -> Iterator[tuple[int, Deferred, dict[str, float]]]:
        """Yield a row for each push whose arrays are computed, oldest first."""
        while self._waiting and (numbers := self._read(self._waiting[0][2])) is not None:
            time, step, _ = self._waiting.popleft()
            yield time, step, numbers

    def give_up(self) -> None:
        """Count what still waits as lost."""
        for _, _, arrays in self._waiting:
            self._refuse(dict.fromkeys(arrays, "its array was not computed before the end"))
        self._waiting.clear()

    def _read(self, arrays: dict[str, Any]) -> dict[str, float] | None:
        """Return the numbers of the arrays that have one, and refuse the others; None if one is not computed yet."""
        numbers: dict[str, float] = {}
        refused: dict[str, str] = {}
        for key, array in arrays.items():
            try:
                number = read_number(array)
            except Exception as error:  # noqa: BLE001  its device may have failed
                is_known = isinstance(error, NoNumberError)
                refused[key] = str(error) if is_known else f"a value of type {type(array).__name__} is not a number"
                continue
            if type(number) not in NUMBERS:
                return None
            numbers[key] = number
        self._refuse(refused)
        return numbers

    def _refuse(self, reasons: dict[str, str]) -> None:
        for key, reason in reasons.items():
            self._counts.refuse(key, reason)
