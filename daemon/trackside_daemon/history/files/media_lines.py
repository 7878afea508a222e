"""Lines of JSON with the images, texts and tables of a run: images in base64."""

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trackside.wire import MediaItem
from trackside_daemon.history.files.items import checked_position, microseconds
from trackside_daemon.history.media import index


def media_lines(history: Path, run: str) -> Iterator[dict[str, Any]]:
    """Yield a line for each file of a run; one that is deleted meanwhile is left out."""
    for item in index.read(history, run):
        with suppress(OSError, ValueError):
            yield {
                "of": item.kind,
                "key": item.key,
                "attempt": item.attempt,
                "rank": item.rank,
                "step": item.step,
                "time": item.time,
                "data": shown(item.kind, index.content(history, run, item)),
            }


def shown(kind: str, data: bytes) -> Any:
    """Return the content of a file as a JSON value.

    Raises:
        ValueError: The file is damaged.
    """
    if kind == "image":
        return b64encode(data).decode()
    return data.decode() if kind == "text" else json.loads(data)


def item_of(fields: Mapping[str, Any]) -> MediaItem:
    """Return the item of a line, with the time in Unix nanoseconds.

    Raises:
        ValueError: The line has another format.
    """
    try:
        kind, data, step = fields["of"], fields["data"], fields.get("step")
        packed = b64decode(data, validate=True) if kind == "image" else data if kind == "text" else json.dumps(data)
        if step is not None:
            checked_position(0, 0, step)
        content = packed if isinstance(packed, bytes) else str(packed).encode()
        return MediaItem(str(kind), str(fields["key"]), microseconds(fields["time"]) * 1000, content, step)
    except (KeyError, TypeError, binascii.Error) as error:
        raise ValueError(f"an image, a text or a table is expected: {type(error).__name__}") from None
