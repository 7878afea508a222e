"""The pynvml module with every call counted and timed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Library:
    """Gives what ``pynvml`` gives; its functions raise as they do there.

    Args:
        pynvml: The module.

    Attributes:
        calls: By function and result, how often. A result is ``success`` or the error's name: ``not_supported``.
        seconds: Time spent in each function.
    """

    def __init__(self, pynvml: Any) -> None:
        self.calls: dict[str, dict[str, int]] = {}
        self.seconds: dict[str, float] = {}
        self._pynvml = pynvml
        self._results = {
            value: name.removeprefix("NVML_ERROR_").lower()
            for name, value in vars(pynvml).items()
            if name.startswith("NVML_ERROR_")
        }

    def result(self, status: int) -> str:
        """The word for a status that NVML returned."""
        return "success" if status == 0 else self._results.get(status, f"error_{status}")

    def __getattr__(self, name: str) -> Any:
        """What the module has under the *name*, kept for the next time; of a function that it lacks, one that says so."""
        found = getattr(self._pynvml, name, None)
        if found is None and name.startswith("nvml"):
            found = self._lacking
        if name.startswith("nvml") and callable(found) and not isinstance(found, type):
            found = self._counted(name, found)
        setattr(self, name, found)
        return found

    def _lacking(self, *_: Any) -> None:
        raise self._pynvml.NVMLError(self._pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        results = self.calls.setdefault(name, {})
        self.seconds[name] = 0.0

        def call(*arguments: Any, **named: Any) -> Any:
            status, begun = 0, time.perf_counter()
            try:
                return function(*arguments, **named)
            except self._pynvml.NVMLError as error:
                status = error.value
                raise
            finally:
                self.seconds[name] += time.perf_counter() - begun
                result = self.result(status)
                results[result] = results.get(result, 0) + 1

        return call
