"""A run that has what a mirror gets besides pushes: series of its machine, and media."""

from __future__ import annotations

from typing import TYPE_CHECKING

from histories import BEGIN, ingested, opened
from session_records import batch_ingested

from trackside.media.pixels import encode
from trackside.wire import MediaItem
from trackside_daemon.model.records import MachineSample

if TYPE_CHECKING:
    from histories import History


def put_extras(one: History) -> None:
    """Write a run of two minutes, ten seconds a step, with its machine, and one item of each kind of media."""
    record = opened("a", name="gpt")
    items = [
        MediaItem("image", "sample", round((BEGIN + 20) * 1e9), encode(2, 1, 1, b"\x00\xff"), 2),
        MediaItem("text", "said", round((BEGIN + 30) * 1e9), "Grüße".encode(), 3),
        MediaItem("table", "rows", round((BEGIN + 30) * 1e9), b'{"columns":["a"],"rows":[[1],["x|y"]],"omitted":2}', 3),
        MediaItem(
            "histogram", "spread", round((BEGIN + 30) * 1e9), b'{"edges":[0,1,3],"counts":[4,2],"nonfinite":0}', 3
        ),
    ]
    pushes = [(s, round((BEGIN + 10 * s) * 1e6), {"loss": s / 4}) for s in range(13)]
    one.put([record, ingested("a", pushes), batch_ingested(record.session.id, 2, media=items)])
    gpu, cpu = 'trackside_gpu_utilization_ratio{gpu="0",uuid="G"}', 'trackside_host_cpu_seconds_total{mode="%s"}'
    for tick in range(-1, 60):
        values = {gpu: tick / 100, cpu % "user": 6.0 * tick, cpu % "system": 2.0 * tick, cpu % "idle": 9.0 * tick}
        one.put([MachineSample(BEGIN + 2 * tick, values)])
