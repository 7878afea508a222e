"""How many floating-point operations a step or a token takes, as the user says it."""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

from trackside.log import warn

PER_PARAMETER = 6
"""Of a token, for each parameter: two forward and four backward (Kaplan et al. 2020, section 2.1; PaLM, appendix B)."""

MOST = 1e30
"""More is a slip: it would take all computers there are longer than a day."""


class Flops(NamedTuple):
    """What one rank's share of the model takes.

    Attributes:
        per_step: Floating-point operations of a step; ``per_token`` those of a token, where the first is not told.
        peak: FLOP/s that the rank's devices could do at most.
    """

    per_step: float | None = None
    per_token: float | None = None
    peak: float | None = None

    def done(self, steps: int, tokens: float | None) -> float | None:
        """Operations that so many steps, or tokens, have taken; None where that is not known."""
        if self.per_step is not None:
            return steps * self.per_step
        return None if self.per_token is None or tokens is None else tokens * self.per_token


NONE = Flops()


def flops(per_step: Any = None, per_token: Any = None, parameters: Any = None, peak: Any = None) -> Flops:
    """What of the arguments of `trackside.init` can be used; of what cannot, a warning tells."""
    step, token = _told("flops_per_step", per_step), _told("flops_per_token", per_token)
    size = _told("parameters", parameters)
    said = {"flops_per_step": step, "flops_per_token": token, "parameters": size}
    used, *others = [name for name, number in said.items() if number is not None] or [""]
    if others:
        warn(f"{used} and {' and '.join(others)} say the same thing in several ways; {used} is used")
    if token is None and size is not None:
        token = PER_PARAMETER * size
    return Flops(step, token, _told("peak_flops", peak))


def _told(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except Exception:  # noqa: BLE001  a value's own __float__ may raise anything
        number = -1.0
    if not (isfinite(number) and 0 < number <= MOST) or isinstance(value, str | bytes | bool):
        warn(f"{name} is {value!r:.40}, which is no positive finite number; it is left out")
        return None
    return number
