"""The settings of the HTTP server."""

import re
from typing import Annotated

from pydantic import AfterValidator

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Texts, setting


def _origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for one in origins:
        if not re.fullmatch(r"https?://[^\s/*@]+", one):
            raise ValueError(f"{one!r} is no origin, such as https://dash.example or http://localhost:8000")
    return origins


class WebConfigSection(Section):
    """The web configuration, a file of its own."""

    file: str = setting("TLS, client certificates and users, in the format of Prometheus' exporter-toolkit.", "")


class WebSection(Section):
    """The HTTP server."""

    listen_address: str = setting("HOST:PORT to serve HTTP on.", "127.0.0.1:21790")
    external_url: str = setting(
        "Address under which people reach the dashboard, for links in notifications. Default: this listener's.",
        "",
        examples=["https://node1.cluster:21790"],
    )
    config: WebConfigSection = WebConfigSection.model_construct()
    allowed_hosts: Texts = setting("Further names that the Host header may have.", (), examples=["node1,node1.cluster"])
    cors_origins: Annotated[Texts, AfterValidator(_origins)] = setting(
        "Origins whose pages may read the API in a browser, with the token.",
        (),
        examples=["https://dash.example,http://localhost:8000"],
    )
    public_read: bool = setting("Open the API for reading without the token.", False)
    agent_actions: bool = setting("Offer the tools that act on a training at /api/v1/mcp?allow-actions=true.", False)
    enable_lifecycle: bool = setting("Allow a reload by POST /-/reload, with the token of the API.", False)


class OtlpInSection(Section):
    """The receiver of other programs' metrics over OTLP."""

    endpoint: str = setting(
        "HOST:PORT to accept OTLP metrics on, over HTTP as JSON or protobuf. Without a token: on loopback alone, from "
        "users who may push.",
        "",
        examples=["127.0.0.1:4318"],
    )
    token_file: str = setting("File with the token of senders, Authorization: Bearer TOKEN.", "")
