"""A configuration as flat entries, so that two can be compared, and its values as printable text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import number, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

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
