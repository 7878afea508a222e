"""Detect attention that has collapsed to single keys, as before divergence (Zhai et al. 2023, arXiv:2303.06296)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.detectors.layers.streaks import Streaks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Found
    from trackside_daemon.detectors.layers.streaks import Layers

# Single heads that attend to one key are useful, such as to the previous one: most heads of a layer must do so, and with
# logits that no softmax comes back from.
ENTROPY, LOGIT, HEADS = 0.1, 30.0, 0.5


class AttentionCollapse:
    """`AttentionCollapse`: most heads of a layer attend to single keys, with large logits."""

    alerts: tuple[str, ...] = ("AttentionCollapse",)

    def __init__(self) -> None:
        self._streaks = Streaks("AttentionCollapse", "warning", "its heads attend to several keys again")

    def evaluate(self, kind: str, step: int, layers: Layers) -> Iterator[Found]:
        """Yield what the next measurement shows."""
        if kind != "attention":
            return
        heads: dict[str, list[dict[str, float]]] = {}
        for name, one in layers.items():
            heads.setdefault(name.rpartition("/")[0], []).append(one)
        yield from self._streaks.update(step, {name: _text(several) for name, several in heads.items()})


def _text(heads: list[dict[str, float]]) -> str:
    collapsed = [one for one in heads if one["entropy"] < ENTROPY and one["logit"] > LOGIT]
    if len(collapsed) <= HEADS * len(heads):
        return ""
    largest = max(one["logit"] for one in collapsed)
    some = f"{len(collapsed)} of its {len(heads)} heads" if len(heads) > 1 else "its head"
    return f"{some} attend to single keys since step {{since}}: the largest logit is {largest:.4g}"
