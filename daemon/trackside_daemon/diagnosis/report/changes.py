"""Differences between the attempts of a run, and between a run and its baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.configuration import FACTS, flat, setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[list[str]]:
    """Return what differs between two attempts: its name, its text before, and its text now; ``-`` for what is absent."""
    one, other = dict(_settings(before)), dict(_settings(now))
    names = dict.fromkeys((*one, *other))
    return [
        [name, one.get(name, "-"), other.get(name, "-")] for name in names if one.get(name, "-") != other.get(name, "-")
    ]


def _settings(attempt: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in FACTS:
        value = attempt.get(name)
        if value not in (None, "", [], ()):
            yield name.replace("_", " "), " ".join(map(str, value)) if name == "command" else setting(value)
    for kind, values in (("", attempt.get("config")), ("package ", attempt.get("packages"))):
        for key, value in flat(values or {}).items():
            yield f"{kind}{key}", setting(value)
    for key, value in flat(attempt.get("hardware") or {}).items():
        yield key.replace("_", " "), setting(value)
