"""The settings of the HTTP server."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Texts


class WebConfigSection(Section):
    """The web configuration, a file of its own."""

    file: Annotated[
        str, Field(description="TLS, client certificates and users, in the format of Prometheus' exporter-toolkit.")
    ] = ""


class WebSection(Section):
    """The HTTP server."""

    listen_address: Annotated[str, Field(description="HOST:PORT to serve HTTP on.")] = "127.0.0.1:21790"
    external_url: Annotated[
        str,
        Field(
            description="Address under which people reach the dashboard, for links in notifications. Default: this listener's.",
            examples=["https://node1.cluster:21790"],
        ),
    ] = ""
    config: WebConfigSection = WebConfigSection()
    allowed_hosts: Annotated[
        Texts,
        Field(description="Further names that the Host header may have.", examples=["node1,node1.cluster"]),
    ] = ()
    public_read: Annotated[bool, Field(description="Open the API for reading without the token.")] = False
    agent_actions: Annotated[
        bool,
        Field(
            description="Offer the tools that act on a training at /api/v1/mcp?allow-actions=true; agents ask there."
        ),
    ] = False
    enable_lifecycle: Annotated[
        bool, Field(description="Allow a reload by POST /-/reload, with the token of the API.")
    ] = False
