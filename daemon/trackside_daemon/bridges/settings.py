"""The settings of all bridges: the mirrors of the history."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trackside_daemon.bridges.mirrors.targets import TARGETS
from trackside_daemon.bridges.mlflow.settings import MlflowSection
from trackside_daemon.bridges.otlp.settings import OtlpSection
from trackside_daemon.bridges.parquet.settings import ParquetSection
from trackside_daemon.bridges.tensorboard.settings import TensorboardSection
from trackside_daemon.bridges.wandb.settings import WandbSection
from trackside_daemon.config.section import Section

if TYPE_CHECKING:
    from trackside_daemon.bridges.mirrors.mirror_settings import MirrorSection


class BridgesSection(Section):
    """Mirrors of the history in other tools."""

    secret: ClassVar[bool] = True

    tensorboard: TensorboardSection = TensorboardSection()
    mlflow: MlflowSection = MlflowSection()
    wandb: WandbSection = WandbSection()
    otlp: OtlpSection = OtlpSection()
    parquet: ParquetSection = ParquetSection()

    def configured(self) -> dict[str, MirrorSection]:
        """Return the sections that have a target, by their names."""
        return {name: getattr(self, name) for name in TARGETS if getattr(self, name).is_configured}
