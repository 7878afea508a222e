"""Several questions of one reader, each of which may be refused at no cost to the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

    Question = tuple[str, tuple[str, ...], Callable[[], float]]

Answer = TypeVar("Answer")

MOST = 64
"""More links, fans or MIG devices than any GPU has. Each is asked for, and a driver that does not know how many there are
may say 0xFFFFFFFF."""


def series(family: str, labels: Iterable[str] = ()) -> str:
    """What a refusal calls it: ``clock_hertz{video}``."""
    return f"{family}{{{','.join(labels)}}}" if labels else family


def ask(nvml: Any, refusals: Refusals, name: str, question: Callable[[], Answer]) -> Answer | None:
    """The answer; None when it is refused, now or since before.

    Raises:
        NVMLError_GpuIsLost: The GPU fell off the bus.
    """
    if name in refusals:
        return None
    try:
        return question()
    except nvml.NVMLError_GpuIsLost:
        raise
    except nvml.NVMLError as error:
        refusals.add(name, nvml.result(error.value))
        return None


def ask_all(nvml: Any, refusals: Refusals, questions: Iterable[Question]) -> list[Value]:
    """The values of those questions that are answered."""
    answers = (
        (family, labels, ask(nvml, refusals, series(family, labels), question))
        for family, labels, question in questions
    )
    return [(family, labels, answer) for family, labels, answer in answers if answer is not None]
