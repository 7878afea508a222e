"""Names of users."""

from __future__ import annotations

import pwd


def user_name(uid: int) -> str:
    """Return a user's name, empty when the machine has none; blocks while a directory server does not answer."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return ""
