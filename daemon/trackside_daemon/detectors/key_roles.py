"""Assign roles to keys: as the user states them, else by their names; ``loss``, ``*/loss``, ``loss/*`` are losses, and so on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from trackside.rl_keys import KEYS, meaning
from trackside.roles import LONGEST
from trackside_daemon.model.text import matches_wildcards

# Keys of evaluation: pushed rarely, with jumps, so they are not compared with training values.
EVALUATION = re.compile(r"(^|[/_.])(eval|evaluation|val|valid|validation|dev|test)([/_.]|$)")

# Losses of adversarial and reinforcement learning. Their target is learned too, so they rise and jump in healthy
# runs. `loss_value` is excluded: some scripts name their only loss so.
OPPOSED = re.compile(
    r"(?<![a-z0-9])("
    r"d|g|disc|discriminator|gen|generator|gan|wgan|adv|adversarial|"
    r"critic|actor|policy|pg|(?<!loss_)value|vf|qf?\d*|td|(?<!cross[-_/.])entropy|kl"
    r")(?![a-z0-9])"
)

# Gradient norms of a part of the model: a number or such a word in the name, or a layer that is sharded over ranks.
PART = re.compile(r"(^|[/_.])(\d+|(layers?|blocks?|stage|expert|params?|parameters?|h)\d*)([/_.]|$)|_local_squared/")

# Measures of preference tuning, whose loss is an ordinary one, though they are called rewards.
PREFERENCE = re.compile(r"(chosen|rejected|margin|accurac)")

# Roles and the patterns of their keys. The first match counts.
ROLES = (
    ("part", re.compile(r"(grad|param)_norm_local_squared")),
    ("loss", re.compile(r"loss|.*[/_.]loss|loss[/_.].*")),
    ("gradient", re.compile(r"(.*[/_.])?grad(ient)?s?_?norm([/_.].*)?")),
    ("rate", re.compile(r"lr|learning_rate|(.*[/.])(lr|learning_rate)|(lr|learning_rate)[/.-].*")),
    ("duration", re.compile(r"step_duration_seconds")),
    ("memory", re.compile(r"process_resident_bytes")),
    ("update", re.compile(r"(.*[/_.])?update_ratio")),
    ("return", re.compile(r"(.*[/_.])?(rewards?|rew|returns?|objective)([/_.].*)?")),
)


class KeyRoles:
    """The roles of the keys of a run.

    Args:
        stated: Patterns of keys with ``*`` and ``?``, and the roles that the user states for them; the first match counts.
    """

    __slots__ = ("_stated",)

    def __init__(self, stated: Iterable[tuple[str, str]] = ()) -> None:
        self._stated = tuple(stated)

    def of_run(self, stated: Mapping[str, str]) -> KeyRoles:
        """Return the roles of a run that states some itself, which come first."""
        return KeyRoles((*stated.items(), *self._stated)) if stated else self

    def of(self, key: str) -> str:
        """Return the role that the user states for a key, else that of its name."""
        return self.stated(key) or role(key)

    def stated(self, key: str) -> str:
        """Return the role that the user states for a key; empty for none."""
        return _stated(self._stated, key) if self._stated and len(key) <= LONGEST else ""


BY_NAME = KeyRoles()


@lru_cache(maxsize=4096)
def _stated(stated: tuple[tuple[str, str], ...], key: str) -> str:
    return next((role for pattern, role in stated if matches_wildcards(key, pattern)), "")


def role(key: str) -> str:
    """Return the role of a key by its name, empty for none.

    Returns:
        One of `trackside.roles.ROLES`: an ``objective`` is a loss of adversarial and reinforcement learning; like a loss of
        ``evaluation`` it is not compared with earlier values. Or ``part`` for the part of a norm that one rank computes,
        which must be finite but has no usual size; ``return`` for a reward that is only a part or an unknown form of the
        training's; or a quantity of `trackside.rl_keys.KEYS`.
    """
    # A key may have 64 KiB, and the roles of thousands are cached.
    return _role(key) if len(key) <= LONGEST else ""


@lru_cache(maxsize=4096)
def _role(key: str) -> str:
    if (found := meaning(key)) is not None and found.quantity in KEYS and found.factor > 0:
        return found.quantity
    name = key.lower()
    match = next((role for role, pattern in ROLES if pattern.fullmatch(name)), "")
    if match == "loss" and EVALUATION.search(name):
        return "evaluation"
    if match == "loss" and OPPOSED.search(name):
        return "objective"
    unlike = {"gradient": PART, "return": PREFERENCE}.get(match)
    return "" if unlike is not None and unlike.search(name) else match
