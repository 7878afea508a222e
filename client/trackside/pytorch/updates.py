"""Estimate from samples how far a step of the optimizer moves each parameter, and in how many directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

SIDE = 64  # rows and columns that are sampled of a matrix, evenly spaced: some 32 directions at most show in them


class UpdateSample:
    """Samples of parameters before a step.

    Args:
        parameters: This rank's parts of the parameters, on one device.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._sizes = [one.numel() for one in parameters]
        self._groups: dict[tuple[int, int], list[int]] = {}
        views = [_sample(one) for one in parameters]
        for place, view in enumerate(views):
            self._groups.setdefault(tuple(view.shape), []).append(place)
        self._before = {shape: self._stacked(views, places) for shape, places in self._groups.items()}

    def compare(self, parameters: Sequence[Any]) -> tuple[list[int], Any, Any]:
        """Return the places of the parameters, the squared norm of the change of each, and its effective rank, as tensors.

        The effective rank is the participation ratio of the singular values' squares: 1 if the change has one direction, n
        if it has n of equal size.
        """
        import torch

        views = [_sample(one) for one in parameters]
        moved, ranks, order = [], [], []
        for shape, places in self._groups.items():
            change = self._stacked(views, places) - self._before[shape]
            squares = change.square().sum((1, 2))
            gram = change @ change.transpose(1, 2)
            ranks.append(squares.square() / gram.square().sum((1, 2)))
            scales = [self._sizes[place] / (shape[0] * shape[1]) for place in places]
            moved.append(torch._foreach_mul(list(squares.unbind()), scales))  # noqa: SLF001
            order += places
        return order, torch.stack([one for group in moved for one in group]), torch.cat(ranks)

    def _stacked(self, views: Sequence[Any], places: Sequence[int]) -> Any:
        import torch

        return torch.stack([views[place] for place in places]).float()


def _sample(tensor: Any) -> Any:
    """Return a view of at most `SIDE` times `SIDE` elements."""
    matrix = tensor.reshape(tensor.shape[0], -1) if tensor.dim() > 1 else tensor.reshape(1, -1)
    return matrix[:: -(-matrix.shape[0] // SIDE) or 1, :: -(-matrix.shape[1] // SIDE) or 1]
