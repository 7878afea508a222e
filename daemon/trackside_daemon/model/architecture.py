"""The architecture of a watched model, as the training reports it."""

from typing import NamedTuple

import msgspec


class Module(NamedTuple):
    """A module with parameters, or several below it; *dtype* and *device* name all of them, separated by commas."""

    name: str
    kind: str
    parameters: int
    dtype: str
    device: str


class Architecture(msgspec.Struct):
    """A model: counts and bytes of all its parameters."""

    parameters: int  # number of parameters
    trainable: int  # number of parameters that are trained
    bytes: int  # their size
    modules: tuple[Module, ...]
    kind: str = msgspec.field(default="", name="class")  # its class, ``class`` in JSON
