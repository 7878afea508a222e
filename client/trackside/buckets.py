"""Bucket layouts of distributions: those of Prometheus' native histograms, so that merging never loses anything.

https://prometheus.io/docs/specs/native_histograms/. A value in bucket *i* of schema *s* is above ``2 ** ((i - 1) / 2 ** s)``
and at most ``2 ** (i / 2 ** s)``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import frexp, inf
from typing import NamedTuple

from trackside.packing import encoded_varint

# Tensors: each bucket is twice as wide as the one below, so that an exponent is an index. A quantile that is read from such
# buckets is wrong by a factor of at most 2; mean, deviation and largest are kept with them, and are exact.
SCHEMA = 0
LOWEST = -126  # its upper bound is the smallest normal float32; all that is closer to zero, except zero, is in it, too
HIGHEST = 128  # upper bound 2 ** 128, above the largest float32; larger float64 are in it, too

# A code is a number for a bucket of a positive value; `SIDE` more is that for the negative ones.
ZERO = 0  # zeros, only while values are counted
FIRST = 1  # the bucket of index `LOWEST`; the others follow up to `HIGHEST`
NONFINITE = FIRST + HIGHEST - LOWEST + 1  # NaN and infinities, only while values are counted
SIDE = NONFINITE + 1
CODES = 2 * SIDE

# Durations: eight buckets from a power of two to the next, each 9 % wider than the one below.
DURATION_SCHEMA = 3
_MANTISSAS = tuple(2 ** (part / 8) / 2 for part in range(8))
DURATION_INDEXES = range(-8 * 40, 8 * 40)  # from a picosecond to thousands of years


def duration_index(seconds: float) -> int | None:
    """Return the index of a duration's bucket in `DURATION_SCHEMA`; None for zero, and beyond `DURATION_INDEXES`."""
    if not 0 < seconds < inf:
        return None
    mantissa, exponent = frexp(seconds)
    index = bisect_left(_MANTISSAS, mantissa) + 8 * (exponent - 1)
    return index if index in DURATION_INDEXES else None


def index_of(code: int) -> int:
    """Return the index of the bucket of a code, on its side of zero."""
    return code % SIDE - FIRST + LOWEST


class Buckets(NamedTuple):
    """A distribution."""

    zeros: int  # number of zeros
    nonfinite: int  # number of NaN and infinities
    counts: dict[int, int]  # number of values by code, without empty buckets; codes rise

    @property
    def size(self) -> int:
        """Number of all values."""
        return self.zeros + self.nonfinite + sum(self.counts.values())

    def packed(self) -> bytes:
        """Return it as variable-length integers: `zeros`, `nonfinite`, then runs of buckets without a gap.

        A run is the number of codes between it and the one before, its length, and its counts: some two bytes a bucket.
        """
        parts = [encoded_varint(self.zeros), encoded_varint(self.nonfinite)]
        end = 0
        for run in _runs(list(self.counts)):
            parts += [encoded_varint(run[0] - end), encoded_varint(len(run))]
            parts += [encoded_varint(self.counts[code]) for code in run]
            end = run[-1] + 1
        return b"".join(parts)

    @classmethod
    def unpacked(cls, data: bytes) -> Buckets:
        """Return the distribution that was `packed`.

        Raises:
            ValueError: The bytes are damaged.
        """
        numbers = _varints(data)
        if len(numbers) < 2:
            raise ValueError("a distribution is cut off")
        counts: dict[int, int] = {}
        at, code = 2, 0
        while at < len(numbers):
            gap, length = numbers[at], numbers[at + 1] if at + 1 < len(numbers) else 0
            code += gap
            at += 2
            if not length or at + length > len(numbers) or code + length > CODES:
                raise ValueError("a distribution has buckets that do not exist, or is cut off")
            counts.update(zip(range(code, code + length), numbers[at : at + length], strict=True))
            at, code = at + length, code + length
        return cls(numbers[0], numbers[1], counts)


def _runs(codes: Sequence[int]) -> list[list[int]]:
    """Return rising codes in runs without a gap."""
    runs: list[list[int]] = []
    for code in codes:
        if runs and code == runs[-1][-1] + 1:
            runs[-1].append(code)
        else:
            runs.append([code])
    return runs


def _varints(data: bytes) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        shift = 0 if byte < 128 else shift + 7
        if not shift:
            numbers.append(number)
            number = 0
        elif shift > 63:
            raise ValueError("a number is too long")
    if shift:
        raise ValueError("a distribution is cut off")
    return numbers
