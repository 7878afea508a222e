"""Explain in one line a value or a name that a user wrote wrongly, with the way out."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Any


def near_name(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return ``; did you mean NAME?`` with the nearest of *names*, whatever their case; *otherwise*, if any, when none is near."""
    # A run chooses the names of its keys and settings, and a comparison takes the square of their length.
    by_lower_case = {one.lower(): one for one in islice(names, 10_000) if len(one) <= 64}
    near = get_close_matches(name.lower()[:64], by_lower_case, 1)
    hint = f"did you mean {by_lower_case[near[0]]}?" if near else otherwise
    return hint and f"; {hint}"


def explain(problem: Any, *, secret: bool = False) -> str:
    """Return what pydantic's *problem* says of a value, followed by the value unless it is *secret* or absent."""
    text = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return text
    value = "" if secret or problem["type"] == "missing" else f", got {problem['input']!r:.80}"
    return f"{text[0].lower()}{text[1:]}{value}"
