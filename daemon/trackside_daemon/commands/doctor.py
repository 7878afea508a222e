"""WIP."""


def doctor() -> None:
    """Say what is wrong."""
