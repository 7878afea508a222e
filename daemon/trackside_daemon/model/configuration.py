"""A configuration as flat entries, so that two can be compared, and its values as printable text."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trackside_daemon.model.text import number, shown

FACTS = ("command", "directory", "git_commit", "git_dirty", "world_size", "host", "framework", "python", "platform")
"""What an attempt states in which it can differ from another, besides its configuration, packages and hardware."""


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return a nested mapping as a flat one: ``{"model": {"layers": 2}}`` as ``{"model.layers": 2}``."""
    if isinstance(value, dict) and value:
        return {
            key: leaf
            for part, inner in value.items()
            for key, leaf in flat(inner, f"{name}.{part}" if name else part).items()
        }
    return {name: value} if name else {}


def meant(names: Iterable[str], field: str) -> set[str]:
    """Return which settings and results a field means: its own name, else ``config.optim.lr`` for lr, optim.lr or config.lr."""
    known = set(names)
    root, _, last = field.partition(".")
    kind = f"{root}." if root in {"config", "summary"} else ""
    part = f".{last if kind else field}"
    return known & {field} or {name for name in known if name.startswith(kind) and name.endswith(part)}


def setting(value: Any) -> str:
    """Return a configuration value as printable text."""
    return shown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def result(value: Any) -> str:
    """Return a result of a run as printable text."""
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else setting(value)


def config(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the last attempt that has one, flat."""
    configs = (attempt.get("config") for attempt in reversed(run["attempt_list"]))
    return next((flat(config) for config in configs if config is not None), {})


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
