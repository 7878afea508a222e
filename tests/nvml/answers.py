"""What a driver that exists only in Python can be told to answer."""

from __future__ import annotations

DOUBLE, UINT, ULONG, ULL, SLL, SINT, USHORT = range(7)
"""Types of a field's value."""

MEMBERS = {DOUBLE: "dVal", UINT: "uiVal", ULONG: "ulVal", SLL: "sllVal", SINT: "siVal", USHORT: "usVal"}
"""Of the union, by the type; all others are ``ullVal``."""


class Refused(int):
    """A status, where a value is expected."""
