"""The plan of profiles that a training gives with its run."""

from __future__ import annotations

from typing import Any

import msgspec

from trackside.environment.config import as_mapping, plain
from trackside.packing import text_of
from trackside.training_log import warn
from trackside.wire import ProfilePlan


def plan(profile: Any) -> ProfilePlan | None:
    """Return a plan from its fields, of a mapping or an object of OmegaConf; None after one warning if it is none."""
    if profile is None:
        return None
    known = ProfilePlan.__struct_fields__
    try:
        fields = plain(as_mapping(profile))
        if unknown := fields.keys() - set(known):
            raise ValueError(f"{', '.join(map(repr, unknown))} is none of its fields, which are {', '.join(known)}")  # noqa: TRY301
        return msgspec.convert(fields, ProfilePlan)
    except Exception as error:  # noqa: BLE001  a mapping of the user's own may raise anything
        warn(f"profile: {text_of(error):.300}; the run goes on without this plan")
        return None
