"""The settings of the history."""

from typing import Annotated, Literal

from pydantic import Field

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Bytes, HistoryBytes, Seconds, setting


class RetentionSection(Section):
    """Bounds of the history; pinned runs are always kept."""

    size: Annotated[HistoryBytes, Field(ge=0)] = setting(
        "Maximum size of the history's file; the oldest samples and runs of those who have more than their share go "
        "first. 0 for no limit.",
        10 * 1024**3,
    )
    age: Annotated[Seconds, Field(ge=0)] = setting(
        "How long a run is kept after its end, such as 90d; 0 keeps it forever.", 0.0
    )


class MediaSection(Section):
    """Bounds of images, texts and tables; the oldest are deleted first."""

    quota_run: Annotated[Bytes, Field(ge=0)] = setting(
        "Maximum size of the images, texts and tables of a run; 0 keeps none.", 256 * 1024**2
    )
    quota: Annotated[Bytes, Field(ge=0)] = setting(
        "Maximum size of the images, texts and tables of all runs.", 4 * 1024**3
    )


class StorageSection(Section):
    """The history of runs, on disk."""

    path: str = setting(
        "Directory of the history; by default /var/lib/trackside for root and those who may write it, else $XDG_STATE_HOME/trackside/MACHINE-ID.",
        "",
    )
    retention: RetentionSection = RetentionSection.model_construct()
    min_free: Annotated[Bytes, Field(ge=0)] = setting(
        "Free bytes of the disk below which the history does not grow, and new media and captures are refused. 0 for "
        "no limit.",
        1024**3,
    )
    media: MediaSection = MediaSection.model_construct()
    synchronous: Literal["normal", "full"] = setting(
        "normal or full; with full each commit waits for the disk, and a power cut loses nothing.", "normal"
    )
    experiment_directory: str = setting(
        "Directory that gets a directory for each run with its report, plots, metrics, configuration and results, at "
        "its end and every reports.every steps.",
        "",
        examples=["/srv/experiments"],
    )
    interval: Annotated[Seconds, Field(ge=0.1)] = setting(
        "Time between two samples of GPUs and host that the history keeps.", 10.0
    )
    jsonl: str = setting("Directory to which everything is appended as JSON lines, too.", "")
