"""The settings of all bridges: the mirrors of the history."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trackside_daemon.bridges.mirrors.target import TARGETS
from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import setting


class MirrorSection(Section):
    """The target of a mirror."""

    target: ClassVar[str] = "url"  # the name of the setting without which there is no mirror
    interval: ClassVar[float] = 5.0  # seconds between two searches for new samples in the history

    @property
    def is_configured(self) -> bool:
        """True if there is a target."""
        return bool(getattr(self, self.target))


class LiveMirrorSection(MirrorSection):
    """Selection of the samples that a mirror of live runs sends."""

    ranks: Literal["lowest", "all"] = setting(
        "lowest or all; the keys of other ranks than the lowest end in /rank_N.", "lowest"
    )


class TensorboardSection(LiveMirrorSection):
    """Event files for TensorBoard."""

    target: ClassVar[str] = "directory"

    directory: str = setting(
        "Directory in which each run gets a directory of event files, for tensorboard --logdir.", ""
    )


class MlflowSection(LiveMirrorSection):
    """A server of MLflow."""

    url: str = setting("Address of an MLflow server, such as http://HOST:5000.", "")
    experiment: str = setting("Experiment for the runs; created if it is missing.", "trackside")
    token_file: str = setting("File with a bearer token; without one, MLflow's own variables apply.", "")
    ca_file: str = setting("Certificates of trusted authorities, in PEM.", "")


class WandbSection(LiveMirrorSection):
    """W&B, by its own client; needs trackside[wandb]."""

    target: ClassVar[str] = "project"
    # Each batch resumes the run, which takes W&B's client a second or two.
    interval: ClassVar[float] = 30.0

    project: str = setting("Project for the runs.", "")
    entity: str = setting("User or team of the project; by default that of the API key.", "")
    mode: Literal["online", "offline"] = setting("online or offline; offline writes logs for wandb sync.", "online")
    directory: str = setting("Directory for the client's logs; by default wandb-mirror beside the history.", "")


class OtlpSection(LiveMirrorSection):
    """A server that accepts OTLP over HTTP, as Prometheus, VictoriaMetrics and collectors do; needs trackside[otlp]."""

    url: str = setting(
        "Address for metrics: http://HOST:9090/api/v1/otlp/v1/metrics of Prometheus, http://HOST:4318/v1/metrics of a "
        "collector.",
        "",
    )
    headers_file: str = setting("File with headers, one NAME: VALUE per line.", "")
    ca_file: str = setting("Certificates of trusted authorities, in PEM.", "")
    # A server has labels for the rank, so all ranks are the default here.
    ranks: Literal["lowest", "all"] = setting("lowest or all.", "all")


class ParquetSection(MirrorSection):
    """A directory or a bucket for the files of ended runs; needs trackside[arrow]."""

    url: str = setting(
        "Directory, s3://BUCKET/PREFIX with ?region=, ?endpoint_override= and ?scheme= of pyarrow.fs, or "
        "gs://BUCKET/PREFIX.",
        "",
        examples=["s3://training/trackside?region=eu-central-1"],
    )


class BridgesSection(Section):
    """Mirrors of the history in other tools."""

    secret: ClassVar[bool] = True

    tensorboard: TensorboardSection = TensorboardSection.model_construct()
    mlflow: MlflowSection = MlflowSection.model_construct()
    wandb: WandbSection = WandbSection.model_construct()
    otlp: OtlpSection = OtlpSection.model_construct()
    parquet: ParquetSection = ParquetSection.model_construct()

    def configured(self) -> dict[str, MirrorSection]:
        """Return the sections that have a target, by their names."""
        return {name: getattr(self, name) for name in TARGETS if getattr(self, name).is_configured}


class PrometheusSection(Section):
    """A server that answers Prometheus' queries: Prometheus, Mimir, Thanos, VictoriaMetrics."""

    url: str = setting("Address of the server, such as http://prometheus:9090; empty for none.", "")
    headers_file: str = setting("File with headers, one NAME: VALUE per line.", "")
    ca_file: str = setting("Certificates of trusted authorities, in PEM.", "")


class FleetSection(Section):
    """The page of all runs of all machines; those that have ended come from bridges.parquet.url."""

    secret: ClassVar[bool] = True

    prometheus: PrometheusSection = PrometheusSection.model_construct()
    daemon_url: Annotated[str, Field(pattern=r"^https?://[^{}]*\{instance\}[^{}]*$")] = setting(
        "Address of a daemon, by the label instance of its series.", "http://{instance}"
    )
