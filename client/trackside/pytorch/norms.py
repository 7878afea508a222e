"""Compute norms of many tensors at once; on a device nothing waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, inf, isfinite, sqrt
from typing import Any, NamedTuple

from trackside.pytorch.parameters import SAMPLED, SAMPLED_IN_ALL, strided_sample


class Norms:
    """The L2 norm of each of several tensors.

    Args:
        tensors: At least one, of any floating-point types and devices.

    Attributes:
        each: The norms as numbers if all tensors are on the CPU. Else None, and one tensor on the first other device
            has them.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        import torch

        self._torch = torch
        self._stack = _stacked(torch, tensors)
        self.each: list[float] | None = self._stack.tolist() if is_here(self._stack) else None

    @property
    def total(self) -> Any:
        """Norm of all tensors together: a number, or a tensor of one."""
        return self._torch.linalg.vector_norm(self._stack) if self.each is None else sqrt(_squared(self.each))

    @property
    def total_squared(self) -> Any:
        """Square of `total`."""
        # In float64, since the square of a large float32 is infinite.
        return self._stack.double().square().sum() if self.each is None else _squared(self.each)

    def subset(self, places: Sequence[int], *, squared: bool = False) -> Any:
        """Return the norm of some tensors, whose places follow each other, or its square."""
        if self.each is not None:
            some = [self.each[place] for place in places]
            return _squared(some) if squared else sqrt(_squared(some))
        part = self._stack[places[0] : places[-1] + 1]  # a list as the index would be copied to the device
        return part.double().square().sum() if squared else self._torch.linalg.vector_norm(part)

    def nonfinite(self) -> tuple[Any, Any]:
        """Return how many of the tensors have non-finite elements, and the place of the first."""
        if self.each is not None:
            bad = [place for place, norm in enumerate(self.each) if not isfinite(norm)]
            return len(bad), next(iter(bad), 0)
        is_bad = self._stack.isfinite().logical_not().to(self._torch.int32)
        return is_bad.sum(), is_bad.argmax()


class WeightSample(NamedTuple):
    """A sample of the weights of several parameters."""

    numbers: Any  # the weights, as one tensor
    roots: Any  # for each weight the square root of the number of weights it stands for

    @classmethod
    def read(cls, tensors: Sequence[Any], roots: Mapping[Any, Any]) -> WeightSample:
        """Copy some weights of each tensor; *roots* is a cache of what depends on the sizes alone."""
        import torch

        most = max(1, min(SAMPLED, SAMPLED_IN_ALL // max(1, len(tensors))))
        views = [strided_sample(tensor, most) for tensor in tensors]
        numbers = torch.cat(views).float()
        counts = tuple((tensor.numel(), view.numel()) for tensor, view in zip(tensors, views, strict=True))
        key = numbers.device, counts
        if key not in roots:
            shares = [  # created on their device: a copy from the host may wait for the device
                numbers.new_full((sampled,), sqrt(size / max(1, sampled))) for size, sampled in counts
            ]
            roots.clear()  # type: ignore[attr-defined]
            roots[key] = torch.cat(shares)  # type: ignore[index]
        return cls(numbers, roots[key])

    def update_ratio(self, after: WeightSample) -> Any:
        """Return the norm of the change up to *after* over the norm of the weights, estimated for all weights."""
        import torch

        norm = torch.linalg.vector_norm
        was = norm(self.numbers * self.roots)
        moved = norm((after.numbers - self.numbers) * self.roots)
        ratio = moved / was.clamp(min=torch.finfo(was.dtype).tiny)
        return float(ratio) if is_here(ratio) else ratio


def is_here(tensor: Any) -> bool:
    """Return whether the host can read a tensor without waiting for a device."""
    return bool(tensor.device.type == "cpu")


def _squared(norms: Sequence[float]) -> float:
    try:
        return fsum(norm * norm for norm in norms)
    except OverflowError:  # of a finite sum beyond a float
        return inf


def _stacked(torch: Any, tensors: Sequence[Any]) -> Any:
    """Return the norms as one tensor, in order."""
    groups: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(place)
    norms: list[Any] = [None] * len(tensors)
    for (_, dtype), places in groups.items():
        some = [tensors[place] for place in places]
        for place, norm in zip(places, _norms(torch, some, dtype), strict=True):
            norms[place] = norm
    if len(groups) == 1:
        return torch.stack(norms)
    wide = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    # Never to the CPU: what is copied there without waiting is read before it has arrived.
    target = next((norm.device for norm in norms if not is_here(norm)), norms[0].device)
    return torch.stack([norm.to(target, wide, non_blocking=True) for norm in norms])


def _norms(torch: Any, tensors: list[Any], dtype: Any) -> Sequence[Any]:
    foreach_norm = torch._foreach_norm  # noqa: SLF001  as clip_grad_norm_ does
    if not dtype.is_floating_point or dtype.itemsize >= 4:
        return foreach_norm(tensors, 2)  # type: ignore[no-any-return]
    try:  # as float32: the squares of half types soon overflow
        return foreach_norm(tensors, 2, torch.float32)  # type: ignore[no-any-return]
    except TypeError:  # before PyTorch 2.5
        return [torch.linalg.vector_norm(tensor, 2, dtype=torch.float32) for tensor in tensors]
