"""Count the values of tensors in the buckets of `trackside.buckets`, on the tensors' device; nothing waits for it."""

from __future__ import annotations

from math import isfinite, isnan, nan, sqrt
from typing import TYPE_CHECKING, Any

from trackside.buckets import CODES, FIRST, HIGHEST, LOWEST, NONFINITE, SIDE, ZERO, Buckets
from trackside.packing import pack
from trackside.wire import DISTRIBUTION_COLUMNS, DistributionFrame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Piece = tuple[int, Any]

SLICE = 2**20  # elements that are counted at once, so that the temporary memory is a few of these
_COLUMNS = DISTRIBUTION_COLUMNS["gradients"]  # of all kinds
TOP = 0.98  # a value of at least this share of the largest counts as saturated


class Histograms:
    """The distributions of several layers, each of any number of tensors on one device.

    Args:
        names: Names of the layers.
        device: The device.
        saturation: Count the values close to the largest one of each tensor, too.
    """

    def __init__(self, names: Sequence[str], device: Any, *, saturation: bool = False) -> None:
        import torch

        self._torch = torch
        self._names = names
        self._saturation = saturation
        self.counts = torch.zeros(len(names) * CODES, dtype=torch.int32, device=device)
        self._places: list[int] = []
        self._sums: list[Any] = []
        self._norms: list[Any] = []
        self._largest: list[Any] = []
        self._saturated: list[Any] = []
        self.updates: tuple[Sequence[int], Any, Any] | None = None
        """What `UpdateSample.compare` has found: the place of each parameter's layer, and two tensors."""

    def add(self, tensors: Iterable[tuple[int, Any]]) -> None:
        """Count the values of dense real tensors, each with the place of its layer; integers are left out."""
        group: list[Piece] = []
        size = 0
        for piece in _pieces(tensors):
            if group and size + piece[1].numel() > SLICE:
                self._count(group)
                group, size = [], 0
            group.append(piece)
            size += piece[1].numel()
        if group:
            self._count(group)

    def _count(self, group: list[Piece]) -> None:
        torch = self._torch
        places = [place for place, _ in group]
        wide = any(piece.dtype == torch.float64 for _, piece in group)
        dtype = torch.float64 if wide else torch.float32
        flat = torch.cat([piece.to(dtype) for _, piece in group])
        sizes = [piece.numel() for _, piece in group]
        bits = flat.view(torch.int64 if wide else torch.int32)
        magnitudes = bits & (2**63 - 1 if wide else 2**31 - 1)
        self._measure(places, flat.split(sizes), magnitudes.split(sizes))
        codes = (_wide_codes if wide else _codes)(magnitudes)
        codes += (bits >> (63 if wide else 31)) * -SIDE  # the sign as -1 or 0
        torch._foreach_add_(list(codes.split(sizes)), [place * CODES for place in places])
        self.counts.index_add_(0, codes, self.counts.new_ones(1).expand(len(codes)))

    def _measure(self, places: list[int], pieces: Sequence[Any], magnitudes: Sequence[Any]) -> None:
        torch = self._torch
        self._places += places
        self._sums += [piece.sum() for piece in pieces]
        self._norms += torch._foreach_norm(list(pieces), 2)  # noqa: SLF001  as clip_grad_norm_ does
        # The bits of positive floats are in the order of the floats, and their maximum is faster.
        largest = [piece.amax().view(pieces[0].dtype) for piece in magnitudes]
        self._largest += largest
        if self._saturation:
            pairs = zip(pieces, largest, strict=True)
            self._saturated += [(piece.abs() >= most * TOP).sum() for piece, most in pairs]

    def tensors(self) -> list[Any]:
        """Return all that `frame` reads, as tensors on the device; to be copied to the host, in this order."""
        parts = [self._sums, self._norms, self._largest, self._saturated]
        stacked = [self._torch.stack([one.float() for one in part]) for part in parts if part]
        return [self.counts, *stacked, *(self.updates or ())[1:]]

    def frame(self, kind: str, time: int, tensors: Sequence[Any]) -> DistributionFrame:
        """Return the distributions as they are sent; any thread may call this.

        Args:
            kind: Their kind.
            time: Monotonic nanoseconds.
            tensors: Copies on the host of `tensors`.
        """
        counts, *rest = tensors
        buckets = _buckets(counts.view(-1, CODES))
        sums = self._summed([one.tolist() for one in rest])
        columns: dict[str, list[float]] = {name: [] for name in (*_COLUMNS, *(("saturated",) * self._saturation))}
        for place, one in enumerate(buckets):
            size = one.size or nan
            mean, squares = sums["sum"][place] / size, sums["squares"][place]
            spread = max(0.0, squares / size - mean * mean) if isfinite(squares) else nan
            shares = one.zeros / size, one.nonfinite / size, sums["saturated"][place] / size
            values = size, mean, sqrt(spread), sqrt(squares), sums["largest"][place], *shares
            for name, value in zip(columns, values, strict=False):
                columns[name].append(value)
        if self.updates is not None:
            columns |= self._moved(columns["norm"], *(one.tolist() for one in rest[-2:]))
        packed = {name: pack("f", values) for name, values in columns.items()}
        return DistributionFrame(kind, time, list(self._names), packed, [one.packed() for one in buckets])

    def _summed(self, numbers: Sequence[Sequence[float]]) -> dict[str, list[float]]:
        """Return sum, squares, largest and number of saturated values by layer, from those of the pieces."""
        found = {name: [0.0] * len(self._names) for name in ("sum", "squares", "largest", "saturated")}
        saturated = numbers[3] if self._saturation else [0.0] * len(self._places)
        for place, total, norm, largest, near in zip(self._places, *numbers[:3], saturated, strict=True):
            found["sum"][place] += total
            found["squares"][place] += norm * norm
            found["largest"][place] = _larger(found["largest"][place], largest)
            found["saturated"][place] += near
        return found

    def _moved(self, norms: Sequence[float], moved: Sequence[float], ranks: Sequence[float]) -> dict[str, list[float]]:
        """Return update ratio and effective rank by layer; the rank is the largest of its parameters'."""
        squares, largest = [nan] * len(self._names), [nan] * len(self._names)
        for place, change, rank in zip((self.updates or ((),))[0], moved, ranks, strict=True):
            squares[place] = change if isnan(squares[place]) else squares[place] + change
            if not largest[place] >= rank:  # NaN is none
                largest[place] = rank
        pairs = zip(squares, norms, strict=True)
        return {"update_ratio": [sqrt(one) / norm if norm else nan for one, norm in pairs], "rank": largest}


def _larger(one: float, other: float) -> float:
    """Return the larger of two magnitudes; NaN if one of them is."""
    return one if isnan(one) or one > other else other


def _pieces(tensors: Iterable[tuple[int, Any]]) -> Iterator[Piece]:
    """Yield the tensors flat, and large ones in slices."""
    for place, tensor in tensors:
        if tensor.dtype.is_floating_point and tensor.numel():
            flat = tensor.reshape(-1)
            for part in flat.split(SLICE) if len(flat) > SLICE else (flat,):
                yield place, part


def _codes(magnitudes: Any) -> Any:
    """Return the codes of the positive side for the bits of float32 without their sign; the argument is overwritten."""
    # The bits before the mantissa, of the next smaller number: bounds are inclusive. Infinity moves up to NaN before.
    magnitudes += magnitudes >= 0x7F800000
    magnitudes -= 1
    magnitudes >>= 23
    magnitudes += FIRST
    return magnitudes


def _wide_codes(magnitudes: Any) -> Any:
    """Return `_codes` for the bits of float64; what lies beyond float32 goes into the outermost buckets."""
    finite = magnitudes < 0x7FF0_0000_0000_0000
    codes = (((magnitudes - 1) >> 52) - 1022 - LOWEST + FIRST).clamp(FIRST, HIGHEST - LOWEST + FIRST)
    return codes.masked_fill(magnitudes == 0, ZERO).masked_fill(~finite, NONFINITE)


def _buckets(counts: Any) -> list[Buckets]:
    """Return the distribution of each row of counts by code."""
    zeros, nonfinite = counts[:, ZERO::SIDE].sum(1).tolist(), counts[:, NONFINITE::SIDE].sum(1).tolist()
    counts[:, ZERO::SIDE] = counts[:, NONFINITE::SIDE] = 0
    rows, codes = counts.nonzero(as_tuple=True)
    every: list[dict[int, int]] = [{} for _ in zeros]
    for row, code, count in zip(rows.tolist(), codes.tolist(), counts[rows, codes].tolist(), strict=True):
        every[row][code] = count
    return list(map(Buckets, zeros, nonfinite, every))
