"""Assign roles to keys by their names: ``loss``, ``*/loss``, ``*_loss`` and ``loss/*`` are losses, and so on."""

from __future__ import annotations

import re
from functools import lru_cache

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

# Roles and the patterns of their keys. The first match counts.
ROLES = (
    ("part", re.compile(r"(grad|param)_norm_local_squared")),
    ("loss", re.compile(r"loss|.*[/_.]loss|loss[/_.].*")),
    ("gradient", re.compile(r"(.*[/_.])?grad(ient)?s?_?norm([/_.].*)?")),
    ("rate", re.compile(r"lr|learning_rate|(.*[/.])(lr|learning_rate)|(lr|learning_rate)[/.-].*")),
    ("duration", re.compile(r"step_duration_seconds")),
    ("memory", re.compile(r"process_resident_bytes")),
)


LONGEST = 1024  # characters of a key with a role: a key may have 64 KiB, and the roles of thousands are cached


def role(key: str) -> str:
    """Return the role of a key, empty for none.

    Returns:
        ``loss``, ``gradient``, ``rate``, ``duration`` or ``memory``; ``part`` for the part of a norm that one rank computes,
        which must be finite but has no usual size; ``evaluation`` for losses that are not compared with earlier ones: those
        of evaluation, and those of adversarial and reinforcement learning.
    """
    return _role(key) if len(key) <= LONGEST else ""


@lru_cache(maxsize=4096)
def _role(key: str) -> str:
    name = key.lower()
    match = next((role for role, pattern in ROLES if pattern.fullmatch(name)), "")
    if match == "gradient" and PART.search(name):
        return ""
    return "evaluation" if match == "loss" and (EVALUATION.search(name) or OPPOSED.search(name)) else match


@lru_cache(maxsize=4096)
def is_opposed(key: str) -> bool:
    """Return whether a key is a loss of adversarial or reinforcement learning."""
    return role(key) == "evaluation" and EVALUATION.search(key.lower()) is None
