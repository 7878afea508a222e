"""Event files as TensorBoard, PyTorch, Lightning and Keras write them, and what TensorBoard's own reader finds in them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Scalar = tuple[str, int, float, float]
"""Tag, step, time, value."""

BEGIN = 1_700_000_000.25


def tensorboard_events(directory: Path, events: Iterator[Any]) -> None:
    """Write events with TensorBoard's own writer."""
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(directory))
    for event in events:
        writer.add_event(event)
    writer.close()


def event(step: int, *values: Any, at: float | None = None) -> Any:
    """Return an event of some Summary.Value messages, a tenth of a second after that of the step before."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Event(wall_time=BEGIN + step / 10 if at is None else at, step=step, summary=Summary(value=values))


def simple(tag: str, value: float) -> Any:
    """Return a value of the older encoding."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary.Value(tag=tag, simple_value=value)


def tensor(tag: str, value: Any, dtype: str = "float32", *, metadata: bool = True) -> Any:
    """Return a scalar of the newer encoding."""
    import numpy as np
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.util import tensor_util

    about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars")) if metadata else None
    proto = tensor_util.make_tensor_proto(np.array(value, dtype))
    return Summary.Value(tag=tag, tensor=proto, metadata=about)


def content(tag: str, value: float) -> Any:
    """Return a scalar whose bytes are in tensor_content, as TensorFlow may write it."""
    import struct

    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    found = tensor(tag, value)
    found.tensor.CopyFrom(TensorProto(dtype=1, tensor_content=struct.pack("<f", value)))
    return found


def image(tag: str, size: int) -> Any:
    """Return an image of some bytes."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary.Value(tag=tag, image=Summary.Image(height=1, width=1, encoded_image_string=b"\x0a" * size))


def histogram(tag: str) -> Any:
    """Return a histogram."""
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

    return Summary.Value(tag=tag, histo=HistogramProto(min=0, max=1, num=3, bucket_limit=[1, 2], bucket=[1, 2]))


def text(tag: str, words: str) -> Any:
    """Return a text as the plugin writes it."""
    from tensorboard.plugins.text.summary_v2 import text_pb

    return text_pb(tag, words).value[0]


def _made(events: Callable[[], Iterator[Any]]) -> Callable[[Path], None]:
    return lambda directory: tensorboard_events(directory, events())


def _torch(write: Callable[[Any], None], **options: Any) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(directory), **options) as writer:
            write(writer)

    return make


def _scalars(writer: Any, **options: Any) -> None:
    for step in range(300):
        writer.add_scalar("train/loss", math.exp(-step / 90), step, **options)
        writer.add_scalar("lr", 1e-3, step, **options)


def _everything(writer: Any) -> None:
    import torch

    for step in range(5):
        writer.add_scalar("loss", 1 / (step + 1), step)
        writer.add_histogram("weights", torch.randn(50), step)
        writer.add_image("picture", torch.zeros(3, 8, 8), step)
        writer.add_text("note", f"at {step}", step)
    writer.add_pr_curve("curve", torch.tensor([0, 1]), torch.tensor([0.1, 0.9]), 0)


def _lightning(directory: Path) -> None:
    from lightning.pytorch.loggers import TensorBoardLogger

    logger = TensorBoardLogger(directory.parent, name=directory.name, version="", default_hp_metric=False)
    logger.log_hyperparams({"lr": 0.1, "depth": 3})
    for step in range(50):
        logger.log_metrics({"train_loss": 1 / (step + 1), "epoch": step // 10}, step)
    logger.finalize("success")


def _grouped(writer: Any) -> None:
    for step in range(9):
        writer.add_scalars("loss", {"a": step, "b": -step}, step)


def _keras(directory: Path) -> None:
    for split in ("train", "validation"):
        tensorboard_events(directory / split, (event(step, tensor("epoch_loss", step / 3)) for step in range(30)))


MAKERS: dict[str, Callable[[Path], None]] = {
    "simple": _made(lambda: (event(step, simple("loss", 1 / (step + 1))) for step in range(500))),
    "many tags": _made(lambda: (event(s, simple(f"layer{t}/norm", s + t / 7)) for s in range(40) for t in range(50))),
    "several values": _made(lambda: (event(s, simple("a", s / 3), simple("b", -s)) for s in range(100))),
    "far steps": _made(lambda: (event(s, simple("x", 1.5), at=BEGIN) for s in (0, 1, 127, 128, 2**31, 2**62, -1))),
    "not finite": _made(
        lambda: (event(s, simple("x", v)) for s, v in enumerate((math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45)))
    ),
    "tensors": _made(lambda: (event(s, tensor("loss", 1 / (s + 1))) for s in range(500))),
    "tensor content": _made(lambda: (event(s, content("loss", 1 / (s + 1))) for s in range(50))),
    "doubles": _made(lambda: (event(s, tensor("x", s / 3, "float64")) for s in range(50))),
    "integers": _made(lambda: (event(s, tensor("x", s - 25, "int64"), tensor("y", s, "int32")) for s in range(50))),
    "halves": _made(lambda: (event(s, tensor("x", s / 3 - 5, "float16")) for s in range(50))),
    "metadata once": _made(lambda: (event(s, tensor("loss", s / 3, metadata=s == 0)) for s in range(50))),
    "zeros": _made(lambda: (event(s, tensor("x", 0.0), simple("y", 0.0)) for s in range(50))),
    "no step": _made(lambda: (event(0, simple("x", float(s)), at=BEGIN + s) for s in range(50))),
    "media": _made(
        lambda: (
            event(s, simple("loss", s / 3), image("i", 40), histogram("h"), text("note", "hello")) for s in range(50)
        )
    ),
    "large images": _made(lambda: (event(s, image("i", 700_000), simple("loss", s / 3)) for s in range(5))),
    "both encodings": _made(lambda: (event(s, simple("a", s / 7), tensor("b", s / 7)) for s in range(100))),
    "unicode": _made(lambda: (event(s, simple("größe/损失 💥", s / 3)) for s in range(50))),
    "torch": _torch(_scalars),
    "torch, new style": _torch(lambda writer: _scalars(writer, new_style=True)),
    "torch, doubles": _torch(lambda writer: _scalars(writer, new_style=True, double_precision=True)),
    "torch, media": _torch(_everything),
    "torch, add_scalars": _torch(_grouped),
    "torch, hparams": _torch(lambda w: w.add_hparams({"lr": 0.1, "act": "gelu", "on": True}, {"accuracy": 0.9})),
    "torch, purge": _torch(_scalars, purge_step=100),
    "lightning": _lightning,
    "keras": _keras,
}
"""Each writes into a directory."""


def expected(path: Path) -> list[Scalar]:
    """Return the scalars that TensorBoard's EventAccumulator finds in a file, sorted."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    options = {"size_guidance": {"scalars": 0, "tensors": 0}, "purge_orphaned_data": False}
    reader = EventAccumulator(str(path), **options)
    reader.Reload()
    tags = reader.Tags()
    found = [(tag, one.step, one.wall_time, one.value) for tag in tags["scalars"] for one in reader.Scalars(tag)]
    for tag in tags["tensors"]:
        plugin = reader.SummaryMetadata(tag).plugin_data.plugin_name
        if plugin == "scalars":
            found += [
                (tag, one.step, one.wall_time, float(tensor_util.make_ndarray(one.tensor_proto)))
                for one in reader.Tensors(tag)
            ]
    return sorted(found, key=repr)
