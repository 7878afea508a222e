"""Bucket layouts of distributions: those of Prometheus' native histograms, so that merging never loses anything.

https://prometheus.io/docs/specs/native_histograms/. A value in bucket *i* of schema *s* is above ``2 ** ((i - 1) / 2 ** s)``
and at most ``2 ** (i / 2 ** s)``.
"""

from __future__ import annotations

from bisect import bisect_left
from math import frexp

# Tensors: each bucket is twice as wide as the one below, so that an exponent is an index. A quantile that is read from such
# buckets is wrong by a factor of at most 2; mean, deviation and largest are kept beside them, and are exact.
SCHEMA = 0
LOWEST = -126  # its upper bound is the smallest normal float32; all that is closer to zero, except zero, is in it, too
HIGHEST = 128  # upper bound 2 ** 128, above the largest float32; larger float64 are in it, too

# A code is a number for a bucket on either side of zero: `code(i)` for the positive ones and `SIDE` more for the negative
# ones. On the way, zeros and what is not finite have the codes below and above those of a side.
ZERO, FIRST, NONFINITE = 0, 1, HIGHEST - LOWEST + 2
SIDE = NONFINITE + 1
CODES = 2 * SIDE

# Durations: eight buckets from a power of two to the next, each 9 % wider than the one below.
DURATION_SCHEMA = 3
_MANTISSAS = tuple(2 ** (part / 8) / 2 for part in range(8))
DURATION_INDEXES = range(-8 * 40, 8 * 40)  # from a picosecond to thousands of years


def duration_index(seconds: float) -> int | None:
    """Return the index of a duration's bucket in `DURATION_SCHEMA`; None for zero, and beyond `DURATION_INDEXES`."""
    mantissa, exponent = frexp(seconds)
    index = bisect_left(_MANTISSAS, mantissa) + 8 * (exponent - 1)
    return index if seconds > 0 and index in DURATION_INDEXES else None


def index_of(code: int) -> int:
    """Return the index of the bucket of a code, on its side of zero."""
    return code % SIDE - FIRST + LOWEST
