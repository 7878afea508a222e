"""Answers of the fake driver in Python."""

from __future__ import annotations

from typing import Any

DOUBLE, UINT, ULONG, ULL, SLL, SINT, USHORT = range(7)
"""Types of a field's value."""

MEMBERS = {DOUBLE: "dVal", UINT: "uiVal", ULONG: "ulVal", SLL: "sllVal", SINT: "siVal", USHORT: "usVal"}
"""Members of the union by type; all other types use ``ullVal``."""


class Refused(int):
    """A status instead of a value."""


def target(reference: Any) -> Any:
    """Return what a reference of ctypes (`byref`) refers to."""
    return reference._obj
