"""Images, texts and tables on their way to the sender thread, which encodes them."""

import json
from time import monotonic_ns

from trackside.limits import MEDIA_TEXT_LENGTH
from trackside.media.pixels import Pixels
from trackside.packing import writable
from trackside.redact import redact, redact_text
from trackside.wire import MediaItem


class UnsentMedia:
    """An image, a text or a table on its way to the sender thread.

    Args:
        kind: One of those of `trackside.limits.MEDIA_BYTES`.
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


def _redacted_table(data: bytes) -> bytes:
    """Return a table without secrets; a text is judged by its column, too."""
    table = json.loads(data)
    names = table["columns"]
    table["rows"] = [
        [redact({name: cell})[name] if isinstance(cell, str) else cell for name, cell in zip(names, row, strict=False)]
        for row in table["rows"]
    ]
    return json.dumps(table, separators=(",", ":")).encode()


def text_bytes(text: str) -> bytes:
    """Return a text as it is sent; what is over the limit is left out and counted."""
    left_out = len(text) - MEDIA_TEXT_LENGTH
    return writable(text if left_out <= 0 else f"{text[:MEDIA_TEXT_LENGTH]}\n… {left_out} more characters").encode()
