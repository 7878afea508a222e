"""Read images, texts and tables of a run, and queue them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside.limits import MEDIA_KEY_LENGTH, MEDIA_TEXT_LENGTH
from trackside.media.histograms import histogram_json
from trackside.media.pixels import Pixels, read
from trackside.media.tables import table_json
from trackside.media.unsent import Unsent
from trackside.packing import writable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside.row_queue import RowQueue


def log_image(queue: RowQueue, key: str, image: Any, step: int | None) -> None:
    """Queue an image: see `Run.log_image`."""
    _queue(queue, "image", key, step, lambda: read(image))


def log_text(queue: RowQueue, key: str, text: str, step: int | None) -> None:
    """Queue a text: see `Run.log_text`."""
    _queue(queue, "text", key, step, lambda: writable(_cut(str(text))).encode())


def log_table(queue: RowQueue, key: str, rows: Any, step: int | None, columns: Sequence[str] | None) -> None:
    """Queue a table: see `Run.log_table`."""
    _queue(queue, "table", key, step, lambda: table_json(rows, columns))


def log_histogram(queue: RowQueue, key: str, values: Any, step: int | None) -> None:
    """Queue a histogram: see `Run.log_histogram`."""
    _queue(queue, "histogram", key, step, lambda: histogram_json(values))


def _queue(queue: RowQueue, kind: str, key: str, step: int | None, content: Callable[[], Pixels | bytes]) -> None:
    if not queue.is_open:
        return
    name = writable(str(key))[:MEDIA_KEY_LENGTH]
    try:
        unsent = Unsent(kind, name, queue.checked_step(step), content())
    except Exception as error:  # noqa: BLE001  of an object of the user's own, and training must go on
        queue.refuse(1, (kind, name), f"{kind} {name}: {type(error).__name__}: {str(error)[:200]}")
        return
    queue.append_media(unsent)


def _cut(text: str) -> str:
    left_out = len(text) - MEDIA_TEXT_LENGTH
    return text if left_out <= 0 else f"{text[:MEDIA_TEXT_LENGTH]}\n… {left_out} more characters"
