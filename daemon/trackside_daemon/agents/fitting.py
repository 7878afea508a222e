"""Bound messages of agents, and fit an answer into the bytes that an agent should have to read."""

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any

MESSAGE_BYTES = 1 << 20  # longest message of an agent
ANSWER_BYTES = 4500  # about 1,500 tokens


def fitted(answer: dict[str, Any], most: int = ANSWER_BYTES) -> str:
    """Return an answer as JSON of at most *most* bytes.

    Where it is longer, the longest lists lose entries at their ends, and ``left_out`` has their numbers by name.
    """
    answer = _short(answer)
    left_out: dict[str, int] = {}
    text = _dump(answer, left_out)
    while len(text) > most:
        place = max(_lists(answer, ""), key=lambda found: len(json.dumps(found[1])), default=None)
        if place is None:
            return _dump({"error": "the answer is too long; ask for less"}, {})
        name, entries = place
        dropped = max(1, len(entries) // 8)
        del entries[-dropped:]
        left_out[name] = left_out.get(name, 0) + dropped
        text = _dump(answer, left_out)
    return text


def fits(answer: dict[str, Any]) -> bool:
    """Return whether nothing of an answer has to be left out."""
    return len(_dump(_short(answer), {})) <= ANSWER_BYTES


def page(name: str, entries: Sequence[Any], offset: int, limit: int, **rest: Any) -> dict[str, Any]:
    """Return an answer with the entries from an offset on that fit, and in ``next`` the offset of those that follow."""
    shown = list(entries[offset : offset + limit])
    while True:
        end = offset + len(shown)
        answer = {**rest, name: shown, **({"next": end} if end < len(entries) else {})}
        if len(shown) < 2 or fits(answer):
            return answer
        del shown[len(shown) * 7 // 8 :]


def _dump(answer: dict[str, Any], left_out: dict[str, int]) -> str:
    whole = {**answer, "left_out": left_out} if left_out else answer
    return json.dumps(whole, ensure_ascii=True, separators=(",", ":"))


def _lists(value: Any, name: str) -> list[tuple[str, list[Any]]]:
    """Return the lists in a value that have entries, with the names of their fields."""
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in _lists(item, key)]
    if isinstance(value, list):
        return [*([(name, value)] if value else []), *(found for item in value for found in _lists(item, name))]
    return []


def _short(value: Any) -> Any:
    """Return a value with numbers of six digits, and NaN and infinities as texts: JSON has none."""
    if isinstance(value, float):
        if not isfinite(value):
            return str(value)
        whole = float(f"{value:.6g}") if abs(value) < 1e6 else float(round(value))
        return int(whole) if whole.is_integer() and abs(whole) < 2**53 else whole
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value
