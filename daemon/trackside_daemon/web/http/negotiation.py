"""Which format a scraper wants: the Accept header, with q values and quoted parameters, of 2.x and 3.x servers."""

from __future__ import annotations

import re
from typing import NamedTuple


class Format(NamedTuple):
    """A format that can be served."""

    openmetrics: bool
    content_type: str


TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def choose(accept: str) -> Format:
    """The format for an Accept header: the one with the highest q, OpenMetrics before text; text when none fits.

    Every name is plain ASCII, so ``allow-utf-8`` is answered as asked and any other escaping as ``underscores``.
    """
    best: tuple[float, bool] = (0.0, False)
    for entry in _split(accept, ","):
        kind, parameters = _parse(entry)
        quality = _quality(parameters.get("q", "1"))
        version = parameters.get("version", "")
        if kind == "application/openmetrics-text" and version in {"", "1.0.0"}:
            best = max(best, (quality, True))
        elif kind in {"text/plain", "text/*", "*/*"} and version in {"", "0.0.4"}:
            best = max(best, (quality, False))
    if best[0] > 0 and best[1]:
        return Format(openmetrics=True, content_type=f"{OPENMETRICS}; escaping={_escaping(accept)}")
    return Format(openmetrics=False, content_type=f"{TEXT}; escaping={_escaping(accept)}")


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header takes gzip."""
    entries = map(_parse, _split(accept_encoding, ","))
    qualities = {kind: _quality(parameters.get("q", "1")) for kind, parameters in entries}
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def _escaping(accept: str) -> str:
    return "allow-utf-8" if "escaping=allow-utf-8" in accept.replace(" ", "").replace('"', "") else "underscores"


def _split(text: str, separator: str) -> list[str]:
    """The parts of a header, which are separated where no quotes are open."""
    parts = re.findall(rf'(?:[^"{separator}]|"[^"]*"?)+', text)
    return [part.strip() for part in parts if part.strip()]


def _parse(entry: str) -> tuple[str, dict[str, str]]:
    """``kind; name=value`` in lower case, the values without their quotes."""
    kind, *parameters = _split(entry.lower(), ";") or [""]
    pairs = (parameter.partition("=") for parameter in parameters)
    return kind, {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _quality(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 0.0
