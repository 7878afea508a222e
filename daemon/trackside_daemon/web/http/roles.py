"""The roles of users and tokens: each may do what the ones before it may."""

from typing import Literal

Role = Literal["metrics", "read", "write", "admin"]
ROLES: tuple[Role, ...] = ("metrics", "read", "write", "admin")
ROLE = "trackside.role"  # ASGI scope key: the role of the request's user or token


def permits(role: str | None, needed: Role) -> bool:
    """Return True when *role* may do what needs *needed*; an unknown role, or none, may do nothing."""
    return role in ROLES and ROLES.index(role) >= ROLES.index(needed)
