"""The settings of the export of runs as Parquet files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trackside_daemon.bridges.mirrors.mirror_settings import MirrorSection


class ParquetSection(MirrorSection):
    """A directory or a bucket for the files of ended runs; needs trackside[arrow]."""

    url: Annotated[
        str,
        Field(
            description="Directory, or address of an object store: s3://BUCKET/PREFIX, with ?region=, ?endpoint_override= and ?scheme= as pyarrow.fs has them, or gs://BUCKET/PREFIX.",
            examples=["s3://training/trackside?region=eu-central-1"],
        ),
    ] = ""
    # A run's file is complete, so all ranks are the default here.
    ranks: Annotated[Literal["all"], Field(description="all: files have every rank.")] = "all"

    @property
    def is_configured(self) -> bool:
        """See `MirrorSection`."""
        return bool(self.url)
