"""Norms of many tensors at once, and what follows from them; on a device nothing of it waits."""

from __future__ import annotations

from math import fsum, inf, isfinite, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.pytorch.parameters import SAMPLED, SAMPLED_IN_ALL, sampled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Norms:
    """The L2 norm of each of several tensors.

    Args:
        tensors: At least one, of any floating-point types and devices.

    Attributes:
        each: As numbers, if all are on the CPU, else None: then one tensor on the first other device has them.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        import torch

        self._torch = torch
        self._stack = _stacked(torch, tensors)
        self.each: list[float] | None = self._stack.tolist() if is_here(self._stack) else None

    @property
    def whole(self) -> Any:
        """The norm of all of them together: a number, or a tensor of one."""
        return self._torch.linalg.vector_norm(self._stack) if self.each is None else sqrt(_squared(self.each))

    @property
    def squared(self) -> Any:
        """The square of that."""
        return self._stack.double().square().sum() if self.each is None else _squared(self.each)

    def of(self, places: Sequence[int], *, squared: bool = False) -> Any:
        """The norm of some of them, which stand one behind the other."""
        if self.each is not None:
            some = [self.each[place] for place in places]
            return _squared(some) if squared else sqrt(_squared(some))
        part = self._stack[places[0] : places[-1] + 1]
        return part.double().square().sum() if squared else self._torch.linalg.vector_norm(part)

    def wrong(self) -> tuple[Any, Any]:
        """How many of the tensors have what is not finite in them, and which is the first of these."""
        if self.each is not None:
            found = [place for place, one in enumerate(self.each) if not isfinite(one)]
            return len(found), next(iter(found), 0)
        bad = self._stack.isfinite().logical_not().to(self._torch.int32)
        return bad.sum(), bad.argmax()


class WeightSample(NamedTuple):
    """Samples of parameters: their numbers, and for each how many weights it stands for, as a root."""

    numbers: Any
    roots: Any

    @classmethod
    def sampled(cls, tensors: Sequence[Any], roots: Mapping[Any, Any]) -> WeightSample:
        """Some weights of each tensor, copied; *roots* keeps from call to call what depends on sizes alone."""
        import torch

        most = max(1, min(SAMPLED, SAMPLED_IN_ALL // max(1, len(tensors))))
        views = [sampled(one, most) for one in tensors]
        numbers = torch.cat(views).float()
        counts = tuple((one.numel(), view.numel()) for one, view in zip(tensors, views, strict=True))
        key = numbers.device, counts
        if key not in roots:
            shares = [  # made where they are used: a copy from the host may wait for the device
                numbers.new_full((seen,), sqrt(there / max(1, seen))) for there, seen in counts
            ]
            roots.clear()  # type: ignore[attr-defined]
            roots[key] = torch.cat(shares)  # type: ignore[index]
        return cls(numbers, roots[key])

    def ratio(self, after: WeightSample) -> Any:
        """The norm of what has changed, over the norm of what was; of all weights, as their samples have it."""
        import torch

        norm = torch.linalg.vector_norm
        was = norm(self.numbers * self.roots)
        moved = norm((after.numbers - self.numbers) * self.roots)
        ratio = moved / was.clamp(min=torch.finfo(was.dtype).tiny)
        return float(ratio) if is_here(ratio) else ratio


def is_here(tensor: Any) -> bool:
    """Whether the host can read a tensor without waiting for a device."""
    return bool(tensor.device.type == "cpu")


def _squared(norms: Sequence[float]) -> float:
    try:
        return fsum(one * one for one in norms)
    except OverflowError:  # of a finite sum beyond a float
        return inf


def _stacked(torch: Any, tensors: Sequence[Any]) -> Any:
    """Their norms as one tensor, in order; halves are summed as floats, since their squares are soon infinite."""
    groups: dict[Any, list[int]] = {}
    for place, one in enumerate(tensors):
        groups.setdefault((one.device, one.dtype), []).append(place)
    norms: list[Any] = [None] * len(tensors)
    for (_, dtype), places in groups.items():
        some = [tensors[place] for place in places]
        for place, norm in zip(places, _norms(torch, some, dtype), strict=True):
            norms[place] = norm
    if len(groups) == 1:
        return torch.stack(norms)
    wide = torch.float64 if any(one.dtype == torch.float64 for one in norms) else torch.float32
    # Never to the CPU: what is copied there without waiting is read before it has arrived.
    there = next((one.device for one in norms if not is_here(one)), norms[0].device)
    return torch.stack([one.to(there, wide, non_blocking=True) for one in norms])


def _norms(torch: Any, tensors: list[Any], dtype: Any) -> Sequence[Any]:
    if not dtype.is_floating_point or dtype.itemsize >= 4:
        return torch._foreach_norm(tensors, 2)  # type: ignore[no-any-return]  # noqa: SLF001  as clip_grad_norm_ does
    try:
        return torch._foreach_norm(tensors, 2, torch.float32)  # type: ignore[no-any-return]  # noqa: SLF001  the same
    except TypeError:  # before PyTorch 2.5
        return [torch.linalg.vector_norm(one, 2, dtype=torch.float32) for one in tensors]
