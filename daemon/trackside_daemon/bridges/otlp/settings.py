"""The settings of the mirror over OTLP."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trackside_daemon.bridges.mirrors.mirror_settings import MirrorSection


class OtlpSection(MirrorSection):
    """A server that accepts OTLP over HTTP, as Prometheus, VictoriaMetrics and collectors do; needs trackside[otlp]."""

    url: Annotated[
        str,
        Field(
            description="Address for metrics, such as http://HOST:9090/api/v1/otlp/v1/metrics of Prometheus or http://HOST:4318/v1/metrics of a collector."
        ),
    ] = ""
    headers_file: Annotated[str, Field(description="File with headers, one NAME: VALUE per line.")] = ""
    ca_file: Annotated[str, Field(description="Certificates of trusted authorities, in PEM.")] = ""
    # A server has labels for the rank, so all ranks are the default here.
    ranks: Annotated[Literal["lowest", "all"], Field(description="lowest or all.")] = "all"

    @property
    def is_configured(self) -> bool:
        """See `MirrorSection`."""
        return bool(self.url)
