"""What a user is called."""

from __future__ import annotations

import pwd


def name_of(uid: int) -> str:
    """The name, from wherever this machine has its users, which may take long; empty where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return ""
