"""Floating-point operations of a step or a token, as the user has stated them."""

from math import isfinite
from typing import Any, NamedTuple

from trackside.training_log import warn

# Operations per parameter and token: two forward, four backward (Kaplan et al. 2020, section 2.1; PaLM, appendix B).
PER_PARAMETER = 6

MAX_ARGUMENT = 1e30  # more would take all computers in the world longer than a day, and is a mistake


class Flops(NamedTuple):
    """Operations of one rank's share of the model."""

    per_step: float | None = None  # floating-point operations of a step
    per_token: float | None = None  # floating-point operations of a token, used if `per_step` is None
    peak: float | None = None  # peak FLOP/s of the rank's devices

    def done(self, steps: int, tokens: float | None) -> float | None:
        """Return the operations of *steps* steps, or of *tokens* tokens; None if they are unknown."""
        if self.per_step is not None:
            return steps * self.per_step
        return None if self.per_token is None or tokens is None else tokens * self.per_token


NONE = Flops()


def flops(per_step: Any = None, per_token: Any = None, parameters: Any = None, peak: Any = None) -> Flops:
    """Return the arguments of `trackside.init` that can be used, and log a warning about the others."""
    step, token = _positive("flops_per_step", per_step), _positive("flops_per_token", per_token)
    size = _positive("parameters", parameters)
    arguments = {"flops_per_step": step, "flops_per_token": token, "parameters": size}
    used, *others = [name for name, number in arguments.items() if number is not None] or [""]
    if others:
        warn(f"{used} and {' and '.join(others)} state the same in several ways; {used} is used")
    if token is None and size is not None:
        token = PER_PARAMETER * size
    return Flops(step, token, _positive("peak_flops", peak))


def _positive(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except Exception:  # noqa: BLE001  a value's own __float__ may raise anything
        number = -1.0
    if not (isfinite(number) and 0 < number <= MAX_ARGUMENT) or isinstance(value, str | bytes | bool):
        warn(f"{name} is {value!r:.40}, which is not a positive finite number; it is left out")
        return None
    return number
