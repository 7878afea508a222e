"""Distributions of tensors: their buckets are numpy's, of every type and with every value, and merging loses nothing."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from trackside.buckets import CODES, FIRST, HIGHEST, LOWEST, NONFINITE, SIDE, Buckets, index_of
from trackside.packing import unpack
from trackside.pytorch.histograms import SLICE, Histograms

if TYPE_CHECKING:
    from trackside.wire import DistributionFrame

NAMES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
TYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]
TENSORS = 60  # of each 1,000 with --soak


def frame_of(layers: list[list[torch.Tensor]], *, saturation: bool = False) -> DistributionFrame:
    histograms = Histograms([str(place) for place in range(len(layers))], "cpu", saturation=saturation)
    histograms.add((place, tensor) for place, tensors in enumerate(layers) for tensor in tensors)
    frame = histograms.frame("activations" if saturation else "gradients", 1, histograms.tensors())
    frame.check()
    return frame


def buckets_of(tensors: list[torch.Tensor]) -> Buckets:
    return Buckets.unpacked(frame_of([tensors]).buckets[0])


def bounds() -> np.ndarray[Any, Any]:
    """Return the upper bounds of all buckets but the last."""
    return np.array([2.0**index for index in range(LOWEST, HIGHEST)])


def expected(values: np.ndarray[Any, Any]) -> Buckets:
    """Return the distribution of some values, computed by numpy."""
    finite = values[np.isfinite(values) & (values != 0)]
    counts: dict[int, int] = {}
    for side, part in ((0, finite[finite > 0]), (SIDE, -finite[finite < 0])):
        places, numbers = np.unique(np.searchsorted(bounds(), part, side="left"), return_counts=True)
        counts |= {int(place) + FIRST + side: int(number) for place, number in zip(places, numbers, strict=True)}
    return Buckets(int((values == 0).sum()), int((~np.isfinite(values)).sum()), counts)


def random_tensor(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor with values of all magnitudes, bounds of buckets, zeros, denormals, NaN and infinities."""
    size = int(torch.randint(1, 400, (1,), generator=generator))
    exponents = torch.rand(size, generator=generator, dtype=torch.float64) * 320 - 170
    values = torch.randn(size, generator=generator, dtype=torch.float64) * 2**exponents
    special = torch.tensor([0.0, -0.0, 1.0, -0.5, 2.0**-126, 2.0**-149, -(2.0**-133), 2.0**-1060, 2.0**127, torch.nan])
    odd = torch.cat([special.double(), torch.tensor([torch.inf, -torch.inf], dtype=torch.float64)])
    places = torch.randint(0, size, (min(size, 20),), generator=generator)
    values[places] = odd[torch.randint(0, len(odd), (len(places),), generator=generator)]
    return values.to(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_counts_are_those_of_numpy_in_the_same_buckets(dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    generator = torch.Generator().manual_seed(4711)
    tensors = [random_tensor(generator, dtype) for _ in range(1000 if request.config.getoption("--soak") else TENSORS)]
    frame = frame_of([[tensor] for tensor in tensors])
    for tensor, packed in zip(tensors, frame.buckets, strict=True):
        assert Buckets.unpacked(packed) == expected(tensor.double().numpy())


def test_large_tensors_are_counted_in_slices() -> None:
    tensors = [torch.randn(SLICE // 3), torch.randn(1500, 1500).t(), torch.zeros(0), torch.ones(10, dtype=torch.int64)]
    together, alone = frame_of([tensors, tensors[:1]]), frame_of([tensors[:1]])
    whole = torch.cat([tensor.reshape(-1) for tensor in tensors[:3]])
    assert Buckets.unpacked(together.buckets[0]) == expected(whole.double().numpy())
    assert together.buckets[1] == alone.buckets[0]
    columns = {name: unpack("f", column) for name, column in together.columns.items()}
    assert (columns["norm"][0], columns["std"][0]) == pytest.approx((float(whole.norm()), float(whole.std())), rel=1e-4)


def test_the_columns_are_those_of_the_values() -> None:
    tensor = torch.cat([torch.randn(1000) + 3, torch.zeros(24)])
    columns = {name: unpack("f", column)[0] for name, column in frame_of([[tensor]], saturation=True).columns.items()}
    assert columns["mean"] == pytest.approx(float(tensor.mean()), rel=1e-5)
    assert columns["std"] == pytest.approx(float(tensor.std(correction=0)), rel=1e-4)
    assert columns["norm"] == pytest.approx(float(tensor.norm()), rel=1e-5)
    assert columns["largest"] == float(tensor.abs().max())
    assert columns["zeros"] == pytest.approx(24 / 1024)
    assert columns["saturated"] == pytest.approx(float((tensor.abs() >= tensor.abs().max() * 0.98).sum()) / 1024)


def test_nan_is_counted_and_makes_the_columns_nan() -> None:
    tensor = torch.tensor([1.0, torch.nan, torch.inf, 2.0])
    columns = {name: unpack("f", column)[0] for name, column in frame_of([[tensor]]).columns.items()}
    assert columns["nonfinite"] == 0.5
    assert isnan(columns["mean"])
    assert isnan(columns["std"])


def test_a_distribution_of_20_buckets_takes_60_bytes_at_most() -> None:
    normal = buckets_of([torch.randn(1_000_000)])
    counts = dict(list(normal.counts.items())[-20:])
    assert len(Buckets(0, 0, counts).packed()) <= 60
    weights = frame_of([[torch.randn(512, 2048) / 45]]).buckets[0]
    assert len(weights) / len(Buckets.unpacked(weights).counts) < 3


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x80", b"\x00\x00\x01", b"\x00\x00\x01\x02\x05", b"\x00\x00\xff\x7f\x01\x01", b"\xff" * 12]
)
def test_damaged_distributions_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"distribution|number"):
        Buckets.unpacked(data)


def test_the_index_of_a_code_is_the_exponent_of_its_upper_bound() -> None:
    assert index_of(FIRST) == index_of(FIRST + SIDE) == LOWEST
    assert index_of(NONFINITE - 1) == HIGHEST
    assert CODES == 2 * SIDE
    (code,) = buckets_of([torch.tensor([4.0])]).counts
    assert 2.0 ** index_of(code) == 4.0
