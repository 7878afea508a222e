"""Panels about optimization: losses, gradients and the learning rate."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import HIGHEST, LOWEST, Query, band, lines
from grafana.run.many_ranks import over_ranks

from trackside_daemon.detectors.key_roles import ROLES

KEYS = {name: f"(?i){pattern.pattern}" for name, pattern in ROLES}
"""The keys of each role, as a regular expression for a matcher."""


def by_key(key: str, matcher: str) -> str:
    """Return a query for the family of a key and for values of other keys, with the label ``key``."""
    known = f'label_replace(trackside_training_{key}{{RANK}}, "key", "{key}", "run", ".*")'
    return f"avg by (key) ({known} or trackside_training_value{{RANK, {matcher}}})"


def loss() -> object:
    """Return the panel with training and evaluation losses."""
    panel = lines(
        "Loss",
        "Training and evaluation losses by key, each a mean over the ranks, and the range of the training loss over the ranks. "
        "Alerts report jumps and rises; compare with the gradient norm. If one rank differs, check its data or its GPU.",
        "none",
        *(
            Query(f"{name}({over_ranks('trackside_training_loss', name)} or trackside_training_loss{{RANK}})", text)
            for name, text in (("min", LOWEST), ("max", HIGHEST))
        ),
        Query(by_key("loss", f'key=~"{KEYS["loss"]}"'), "{{key}}"),
    )
    return band(panel)


def row() -> Row:
    """Return the row with all panels but the loss, which is in the first row."""
    return Row("Loss and optimization", *_values(), *_optimizer())


def _values() -> list[object]:
    return [
        lines(
            "Evaluation and other values",
            "Accuracy and values pushed under other keys, such as eval/loss, each a mean over the ranks. An evaluation loss "
            "that rises while the training loss falls means overfitting.",
            "none",
            Query(by_key("accuracy", f'key!~"{KEYS["gradient"]}|{KEYS["rate"]}"'), "{{key}}"),
        ),
        lines(
            "Gradient norm",
            "Norm of the gradients before clipping, on a logarithmic axis, as a mean over the ranks. It often rises severalfold some "
            "steps before the loss jumps. Near 0, the model learns hardly anything.",
            "none",
            Query(by_key("grad_norm", f'key=~"{KEYS["gradient"]}"'), "{{key}}"),
            log=True,
        ),
    ]


def _optimizer() -> list[object]:
    return [
        lines(
            "Learning rate",
            "Learning rate as pushed. Compare it with the intended schedule: warm-up, peak and end. A hundredfold jump, or 0 for "
            "a long time, is LearningRateOutOfRange.",
            "none",
            Query(by_key("learning_rate", f'key=~"{KEYS["rate"]}"'), "{{key}}"),
        ),
        lines(
            "NaN and infinite values",
            "How often NaN or infinity was pushed, by key, over all ranks. For a loss, any of them is NonFinite: stop the run and "
            "continue from the checkpoint before it.",
            "none",
            Query("sum by (key) (increase(trackside_training_nonfinite_total{RANK}[$__rate_interval]))", "{{key}}"),
            minimum=0,
        ),
    ]
