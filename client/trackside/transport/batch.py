"""Pack pushed rows into batches, as columns of consecutive rows with the same keys."""

from trackside.limits import BATCH_ROWS
from trackside.packing import pack
from trackside.wire import Block

BATCH_BYTES = 256 * 1024  # limit of a batch's size, approximately

# A push of more keys than this, or of longer ones, is sent as several rows of one step, so that each fits a batch.
ROW_KEYS = 4096


class BatchBuilder:
    """Collects rows for the `Block`s of one batch.

    Attributes:
        rows: Number of rows.
        values: Number of values.
        size: Bytes, approximately.
        steps: Lowest and highest step of the training's own count; None without one.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.values = 0
        self.size = 0
        self.steps: tuple[int, int] | None = None
        self._layout: tuple[tuple[str, ...], bool] = (), False
        self._blocks: list[tuple[tuple[str, ...], list[int], list[int], list[float], bool]] = []

    def add(self, time: int, step: int, values: dict[str, float], *, aside: bool = False) -> None:
        """Append a row; a row with other keys than the last, or of another count of steps, begins a block."""
        keys = tuple(values)
        if (keys, aside) != self._layout or not self._blocks:
            self._layout = keys, aside
            self._blocks.append((keys, [], [], [], aside))
            self.size += sum(len(key.encode()) + 5 for key in keys)  # msgpack puts 5 bytes at most before a text
        _, steps, times, numbers, _ = self._blocks[-1]
        steps.append(step)
        times.append(time)
        numbers.extend(values.values())
        self.rows += 1
        self.values += len(keys)
        if not aside:
            self.steps = (step, step) if self.steps is None else (min(step, self.steps[0]), max(step, self.steps[1]))
        self.size += 16 + 8 * len(keys)  # a step, a time and the values, 8 bytes each

    @property
    def is_full(self) -> bool:
        """The batch is as large as it may be."""
        return self.rows >= BATCH_ROWS or self.size >= BATCH_BYTES

    def blocks(self) -> list[Block]:
        """Return the rows as the wire has them."""
        return [
            # msgspec refuses subclasses of str, such as the members of a StrEnum.
            Block(list(map(str.__str__, keys)), pack("q", steps), pack("q", times), pack("d", numbers), aside)
            for keys, steps, times, numbers, aside in self._blocks
        ]


def split_row(values: dict[str, float]) -> list[dict[str, float]]:
    """Return a push as rows that each fit a batch; nearly always one row."""
    if len(values) <= ROW_KEYS and 4 * sum(map(len, values)) <= BATCH_BYTES:  # UTF-8 has at most 4 bytes a character
        return [values]
    rows: list[dict[str, float]] = [{}]
    size = 0
    for key, value in values.items():
        if len(rows[-1]) == ROW_KEYS or size > BATCH_BYTES:
            rows.append({})
            size = 0
        rows[-1][key] = value
        size += len(key.encode())
    return rows
