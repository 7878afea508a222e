"""Environment variables that turn a part of trackside on or off."""

OFF = frozenset(("", "0", "false", "no", "off"))  # values that mean off, in lower case
