"""Protocols of the pipeline's stages for findings and alerts."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from trackside_daemon.detectors.base import Past
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert


class FindingSource(Protocol):
    """Stage that receives every batch, in the pipeline's thread, and returns findings."""

    def accept(self, batch: Batch) -> Sequence[Finding]:
        """Return the findings that follow from a batch."""


@runtime_checkable
class RestorableSource(Protocol):
    """Finding source that learns from samples, and continues where an earlier daemon ended."""

    def restore_rank(self, past: Past, fired: Sequence[Alert]) -> None:
        """Restore the state of one rank that still trains.

        Args:
            past: Samples that the rank pushed.
            fired: All alerts that fired when the earlier daemon ended.
        """


class BatchListener(Protocol):
    """Stage that receives batches, in the pipeline's thread. It must not block: it queues its work for a thread of its own."""

    def accept(self, batch: Batch) -> None:
        """Handle a batch: any, or one of the active alerts, with the `records.Alert`s that began, got worse or ended."""
