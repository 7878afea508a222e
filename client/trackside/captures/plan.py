"""The plan of profiles that a training gives with its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trackside.wire import ProfilePlan

if TYPE_CHECKING:
    from collections.abc import Mapping


def plan(profile: Mapping[str, Any] | None) -> ProfilePlan | None:
    """Return a plan from its fields.

    Raises:
        ValueError: It is no mapping, has an unknown field, or a field has another type or range.
    """
    if profile is None:
        return None
    try:
        fields = dict(profile)
        made = msgspec.convert(fields, ProfilePlan)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ValueError(f"profile: {error}") from None
    if unknown := fields.keys() - set(ProfilePlan.__struct_fields__):
        known = ", ".join(ProfilePlan.__struct_fields__)
        raise ValueError(f"profile: {', '.join(map(repr, unknown))} is none of its fields, which are {known}")
    return made
