"""A configuration as flat entries, so that two can be compared."""

from __future__ import annotations

from typing import Any

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
