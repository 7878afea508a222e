"""The families of the layers of an observed model, by kind and column of `trackside.wire.DistributionFrame`."""

from __future__ import annotations

from trackside_daemon.model.families.training import RANK
from trackside_daemon.model.metric import define

_GAUGES = {
    "norm": ("norm", "Norm of a layer's values"),
    "mean": ("mean", "Mean of a layer's values"),
    "std": ("std", "Standard deviation of a layer's values"),
    "largest": ("largest", "Largest magnitude of a layer's values"),
    "zeros": ("zeros_ratio", "Share of zeros among a layer's values"),
    "nonfinite": ("nonfinite_ratio", "Share of NaN and infinities among a layer's values"),
    "saturated": ("saturated_ratio", "Share of outputs within 2 % of a layer's largest"),
    "update_ratio": ("update_ratio", "Norm of the last step's change of a layer's weights over their norm"),
    "rank": ("update_rank", "Effective rank of the last step's change of a layer's weights"),
    "entropy": (
        "attention_entropy_ratio",
        "Entropy of a head's attention, 1 if it attends to all keys equally",
    ),
    "logit": ("attention_largest_logit", "Largest magnitude of a head's attention logits"),
}
_AT = "as last measured by run.observe on the rank; only of layers that limits.layers selects."

COLUMNS = {
    column: define(f"trackside_layer_{name}", f"{text}, {_AT}", *RANK, "kind", "layer")
    for column, (name, text) in _GAUGES.items()
}
"""The family of each column; ``size``, which never changes, has none."""
