"""The limits of a request for a capture: the options that a kind takes, and the most steps and seconds."""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec

from trackside.limits import CAPTURE_RANKS, PROFILE_SECONDS, PROFILE_STEPS
from trackside_daemon.model.capture import KINDS, PROFILE, KindName, ProfileOptions

RANGES = {"steps": (1, PROFILE_STEPS), "seconds": (0.01, PROFILE_SECONDS)}


class KindOptions(NamedTuple):
    """The options of a kind of captures."""

    steps: int = 0  # the usual number of steps; 0 if it records a moment
    others: tuple[str, ...] = ()  # the other options


OPTIONS_BY_KIND: dict[str, KindOptions] = {
    **dict.fromkeys(KINDS, KindOptions()),
    "profile": KindOptions(10, ("seconds", "shapes", "stacks", "memory")),
    "layers": KindOptions(100),
    "modules": KindOptions(10),
}


class OptionError(ValueError):
    """Options that a capture cannot have; the message is one line."""

    def __init__(self, names: Sequence[str], reason: str) -> None:
        self._names, self._reason = names, reason
        super().__init__(self.text())

    def text(self, prefix: str = "") -> str:
        """Return the message, with a prefix of each option's name."""
        return f"{', '.join(f'{prefix}{name}' for name in self._names)}: {self._reason}"


class CaptureBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request for a capture, by a person, an agent or another program; see `Capture` and `ProfileOptions`."""

    kind: KindName = "profile"
    trigger: Literal["person", "api"] = "api"
    ranks: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=CAPTURE_RANKS)] = []
    steps: int | None = None
    seconds: float | None = None
    shapes: bool = False
    stacks: bool = False
    memory: bool = False

    def options(self) -> ProfileOptions:
        """Return the options; without steps and seconds, with the usual number of steps of the kind.

        Raises:
            OptionError: The kind does not take one, or a number is out of its range.
        """
        takes = OPTIONS_BY_KIND[self.kind]
        given = {name: getattr(self, name) for name in ProfileOptions.__struct_fields__}
        for name, value in given.items():
            if value not in (None, False) and name not in takes.others and not (name == "steps" and takes.steps):
                raise OptionError((name,), f"a capture of kind {self.kind} has none")
        if self.steps is not None and self.seconds is not None:
            raise OptionError(("steps", "seconds"), "give one of them")
        for name, (least, most) in RANGES.items():
            if given[name] is not None and not least <= given[name] <= most:
                raise OptionError((name,), f"{least:g} at least" if given[name] < least else f"{most:g} at most")
        usual = takes.steps or PROFILE.steps
        return ProfileOptions(**given | ({"steps": usual} if self.steps is None and self.seconds is None else {}))
