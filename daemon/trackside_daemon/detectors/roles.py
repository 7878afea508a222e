"""What a key is to the detectors, by its name: ``loss``, ``*/loss``, ``*_loss``, ``loss/*`` is a loss, and so on."""

from __future__ import annotations

import re
from functools import lru_cache

EVALUATION = re.compile(r"(^|[/_.])(eval|evaluation|val|valid|validation|dev|test)([/_.]|$)")
"""A key of evaluation comes seldom and jumps: nothing is compared with its training's."""

OPPOSED = re.compile(
    r"(?<![a-z0-9])("
    r"d|g|disc|discriminator|gen|generator|gan|wgan|adv|adversarial|"
    r"critic|actor|policy|pg|(?<!loss_)value|vf|qf?\d*|td|(?<!cross[-_/.])entropy|kl"
    r")(?![a-z0-9])"
)
"""A loss of adversarial or of reinforcement learning: what it is measured against is learnt too, so that it rises and jumps in
the best of runs. ``loss_value`` is what some call the only loss that they have.
"""

PART = re.compile(r"(^|[/_.])(\d+|(layers?|blocks?|stage|expert|params?|parameters?|h)\d*)([/_.]|$)|_local_squared/")
"""A gradient norm with a number or such a word in its name is of a part of the model, and not the model's; so are those of
layers of which ranks have their own parts.
"""

ROLES = (
    ("part", re.compile(r"(grad|param)_norm_local_squared")),
    ("loss", re.compile(r"loss|.*[/_.]loss|loss[/_.].*")),
    ("gradient", re.compile(r"(.*[/_.])?grad(ient)?s?_?norm([/_.].*)?")),
    ("rate", re.compile(r"lr|learning_rate|(.*[/.])(lr|learning_rate)|(lr|learning_rate)[/.-].*")),
    ("duration", re.compile(r"step_duration_seconds")),
    ("memory", re.compile(r"process_resident_bytes")),
)
"""Each role and the keys that have it; what comes first counts."""


@lru_cache(maxsize=4096)
def role(key: str) -> str:
    """``loss``, ``evaluation``, ``gradient``, ``part``, ``rate``, ``duration``, ``memory``; empty for none.

    ``part`` is what a rank tells of its own part: how large it is means nothing, but it should be finite.
    ``evaluation`` are losses that are not compared with those before: of evaluation, and of what learns against another.
    """
    name = key.lower()
    found = next((role for role, pattern in ROLES if pattern.fullmatch(name)), "")
    if found == "gradient" and PART.search(name):
        return ""
    return "evaluation" if found == "loss" and (EVALUATION.search(name) or OPPOSED.search(name)) else found
