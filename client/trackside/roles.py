"""Roles that the user states for pushed keys: what a key is, where its name does not show it."""

from collections.abc import Mapping
from typing import Any

from trackside.training_log import warn

ROLES = (
    *("loss", "objective", "reward", "evaluation", "gradient", "rate", "update", "duration", "memory"),
    *("reward_std", "kl", "entropy", "response_length", "truncated_ratio", "zero_variance_ratio"),
    *("train_inference_mismatch", "importance_ratio"),
)

STATED = 64  # limit of the roles of a run
LONGEST = 1024  # limit of the characters of a key with a role


def is_role(pattern: object, role: object) -> bool:
    """Return whether a role can be used: a text of at most `LONGEST` characters that UTF-8 can encode, and one of `ROLES`."""
    if not (isinstance(pattern, str) and isinstance(role, str) and 0 < len(pattern) <= LONGEST and role in ROLES):
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in pattern)


def usable(roles: object) -> dict[str, str]:
    """Return the first `STATED` roles that can be used, of anything that another process may have sent."""
    items = list(roles.items())[: 2 * STATED] if isinstance(roles, dict) else []
    return dict([(pattern, role) for pattern, role in items if is_role(pattern, role)][:STATED])


def stated(roles: Any) -> dict[str, str]:
    """Return the argument ``roles`` of `trackside.init` as far as it can be used, after one warning about the rest."""
    if roles is None:
        return {}
    try:
        if not isinstance(roles, Mapping):
            raise TypeError(f"{roles!r:.80} is no mapping of keys to roles")  # noqa: TRY301
        given = {**roles}
        used = usable(given)
        left_out = [f"{pattern!r:.80} is {role!r:.40}" for pattern, role in given.items() if pattern not in used]
    except Exception as error:  # noqa: BLE001  a mapping of the user's own may raise anything
        warn(f"roles: {error!s:.200}; they are left out")
        return {}
    if left_out:
        some = ", ".join(left_out[:3]) + (", …" if len(left_out) > 3 else "")
        warn(f"roles: {some}; left out, since a role is one of {', '.join(ROLES)}, of at most {STATED} keys")
    return used
