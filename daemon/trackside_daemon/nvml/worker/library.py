"""The pynvml module with every call counted and timed."""

import time
from collections.abc import Callable
from typing import Any


class CountedNvml:
    """Proxy of ``pynvml`` with the same names; its functions raise the same errors.

    Args:
        pynvml: The module.

    Attributes:
        calls: Number of calls by function and result. A result is ``success`` or an error's name: ``not_supported``.
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
        """Return the word for a status that NVML returned."""
        return "success" if status == 0 else self._results.get(status, f"error_{status}")

    def __getattr__(self, name: str) -> Any:
        """Return and keep the module's attribute; a function that the module lacks raises FUNCTION_NOT_FOUND."""
        attribute = getattr(self._pynvml, name, None)
        if attribute is None and name.startswith("nvml"):
            attribute = self._missing
        if name.startswith("nvml") and callable(attribute) and not isinstance(attribute, type):
            attribute = self._counted(name, attribute)
        setattr(self, name, attribute)
        return attribute

    def _missing(self, *_: Any) -> None:
        raise self._pynvml.NVMLError(self._pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        results = self.calls.setdefault(name, {})
        self.seconds[name] = 0.0

        def call(*arguments: Any, **keywords: Any) -> Any:
            status = 0
            start = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            except self._pynvml.NVMLError as error:
                status = error.value
                raise
            finally:
                self.seconds[name] += time.perf_counter() - start
                result = self.result(status)
                results[result] = results.get(result, 0) + 1

        return call
