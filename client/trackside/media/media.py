"""Queue images, texts and tables of a run: read at once, encoded by the sender thread."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from trackside.media.pixels import Pixels, read
from trackside.media.tables import table_json
from trackside.packing import writable
from trackside.redact import redact, redact_text
from trackside.wire import MediaItem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside.row_queue import RowQueue

TEXT = 65_536  # limit of characters of a text
KEY = 256  # limit of characters of a key


class Unsent:
    """An image, a text or a table on its way to the sender thread.

    Args:
        kind: ``image``, ``text`` or ``table``.
        key: Its name.
        step: Its step; None for the current one.
        content: Pixels, or the bytes that are sent, for a text before secrets are removed.
    """

    def __init__(self, kind: str, key: str, step: int | None, content: Pixels | bytes) -> None:
        self.kind, self.key, self.step, self.content = kind, key, step, content
        self.time = monotonic_ns()

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return len(self.content.data if isinstance(self.content, Pixels) else self.content)

    def item(self, step: int | None) -> MediaItem:
        """Return the message; *step* is the current step. For the sender thread: an image takes milliseconds."""
        content = self.content
        if isinstance(content, Pixels):
            data = content.png()
        elif self.kind == "text":
            data = redact_text(content.decode()).encode()
        elif self.kind == "table":
            data = _redacted_table(content)
        else:
            data = content
        return MediaItem(self.kind, self.key, self.time, data, step if self.step is None else self.step)


def log_image(queue: RowQueue, key: str, image: Any, step: int | None) -> None:
    """Queue an image: see `Run.log_image`."""
    _queue(queue, "image", key, step, lambda: read(image))


def log_text(queue: RowQueue, key: str, text: str, step: int | None) -> None:
    """Queue a text: see `Run.log_text`."""
    _queue(queue, "text", key, step, lambda: writable(_cut(str(text))).encode())


def log_table(queue: RowQueue, key: str, rows: Any, step: int | None, columns: Sequence[str] | None) -> None:
    """Queue a table: see `Run.log_table`."""
    _queue(queue, "table", key, step, lambda: table_json(rows, columns))


def _queue(queue: RowQueue, kind: str, key: str, step: int | None, content: Callable[[], Pixels | bytes]) -> None:
    if not queue.is_open:
        return
    name = writable(str(key))[:KEY]
    try:
        unsent = Unsent(kind, name, queue.checked_step(step), content())
    except Exception as error:  # noqa: BLE001  of an object of the user's own, and training must go on
        queue.refuse(1, (kind, name), f"{kind} {name}: {type(error).__name__}: {str(error)[:200]}")
        return
    queue.append_media(unsent)


def _cut(text: str) -> str:
    left_out = len(text) - TEXT
    return text if left_out <= 0 else f"{text[:TEXT]}\n… {left_out} more characters"


def _redacted_table(data: bytes) -> bytes:
    import json

    return json.dumps(redact(json.loads(data)), separators=(",", ":")).encode()
