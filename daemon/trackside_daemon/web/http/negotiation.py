"""Content negotiation: the Accept and Accept-Encoding headers of Prometheus 2.x and 3.x, with q values and quotes."""

import re
from typing import NamedTuple


class PageFormat(NamedTuple):
    """A format of the metrics page, and its Content-Type."""

    openmetrics: bool
    content_type: str
    protobuf: bool = False


TEXT = "text/plain; version=0.0.4; charset=utf-8"
PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def negotiate_format(accept: str) -> PageFormat:
    """Return the format for an Accept header: the highest q wins, then protobuf, then OpenMetrics.

    Without a match it is text. Every name is plain ASCII, so ``allow-utf-8`` is confirmed as requested and any other
    escaping becomes ``underscores``.
    """
    best: tuple[float, int] = (0.0, 0)
    for entry in _split(accept, ","):
        kind, parameters = _parse(entry)
        quality = _quality(parameters.get("q", "1"))
        version = parameters.get("version", "")
        if kind == "application/openmetrics-text" and version in {"", "1.0.0"}:
            best = max(best, (quality, 1))
        elif kind in {"text/plain", "text/*", "*/*"} and version in {"", "0.0.4"}:
            best = max(best, (quality, 0))
        elif kind == "application/vnd.google.protobuf" and parameters.get("encoding") == "delimited":
            best = max(best, (quality, 2))
    if best[0] > 0 and best[1] == 2:
        return PageFormat(openmetrics=False, content_type=PROTOBUF, protobuf=True)
    if best[0] > 0 and best[1]:
        return PageFormat(openmetrics=True, content_type=f"{OPENMETRICS}; escaping={_escaping(accept)}")
    return PageFormat(openmetrics=False, content_type=f"{TEXT}; escaping={_escaping(accept)}")


def accepts_gzip(accept_encoding: str) -> bool:
    """Return True when an Accept-Encoding header permits gzip."""
    entries = map(_parse, _split(accept_encoding, ","))
    qualities = {kind: _quality(parameters.get("q", "1")) for kind, parameters in entries}
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def _escaping(accept: str) -> str:
    return "allow-utf-8" if "escaping=allow-utf-8" in accept.replace(" ", "").replace('"', "") else "underscores"


def _split(text: str, separator: str) -> list[str]:
    """Split a header at each separator that is not inside quotes."""
    # A quote without an end lasts to the end of the text.
    parts = re.findall(rf'(?:[^"{separator}]|"[^"]*"?)+', text)
    return [part.strip() for part in parts if part.strip()]


def _parse(entry: str) -> tuple[str, dict[str, str]]:
    """Return the kind and the parameters of ``kind; name=value``, in lower case, values without quotes."""
    kind, *parameters = _split(entry.lower(), ";") or [""]
    pairs = (parameter.partition("=") for parameter in parameters)
    return kind, {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _quality(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 0.0
