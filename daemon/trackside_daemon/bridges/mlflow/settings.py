"""The settings of the mirror to MLflow."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.bridges.mirrors.mirror_settings import MirrorSection


class MlflowSection(MirrorSection):
    """A server of MLflow."""

    url: Annotated[str, Field(description="Address of an MLflow server, such as http://HOST:5000.")] = ""
    experiment: Annotated[str, Field(description="Experiment for the runs; created if it is missing.")] = "trackside"
    token_file: Annotated[
        str, Field(description="File with a bearer token; without one, MLflow's own variables apply.")
    ] = ""
    ca_file: Annotated[str, Field(description="Certificates of trusted authorities, in PEM.")] = ""

    @property
    def is_configured(self) -> bool:
        """See `MirrorSection`."""
        return bool(self.url)
