"""The base class of the settings sections that each package owns."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings.

    Attributes:
        secret: No error shows a value of this section: an address may be a secret, and so may a misplaced text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    secret: ClassVar[bool] = False
