"""The flag ``--web.credentials-file``, which all commands accept, and the variable that it sets."""

from collections.abc import Sequence
from itertools import islice

FLAG = "--web.credentials-file"
VARIABLE = "TRACKSIDE_WEB__CREDENTIALS_FILE"


def split_flag(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flag, which may come before or after the command, and the other arguments."""
    flag: list[str] = []
    others: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            others += [argument, *rest]
        elif argument == FLAG:
            flag += [argument, *islice(rest, 1)]
        else:
            (flag if argument.startswith(f"{FLAG}=") else others).append(argument)
    return flag, others
