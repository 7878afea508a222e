"""Environment variables that turn a part of trackside on or off."""

from __future__ import annotations

OFF = frozenset(("", "0", "false", "no", "off"))  # values that mean off, in lower case
