"""Patterns with ``*`` and ``?``, as users write them for alerts, runs and keys."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches_wildcards(value: str, pattern: str) -> bool:
    """Return True if a text matches a pattern with ``*`` and ``?``."""
    # fnmatch has more wildcards, all of which begin with a bracket.
    return value == pattern or fnmatchcase(value, pattern.replace("[", "[[]"))
