"""What is learnt: losses, gradients, the learning rate."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import HIGHEST, LOWEST, Query, band, lines

from trackside_daemon.detectors.roles import ROLES

KEYS = {name: f"(?i){pattern.pattern}" for name, pattern in ROLES}
"""The keys of each role, as a matcher has them."""


def by_key(key: str, matcher: str) -> str:
    """A query: the family of a key, and values of other keys with it, told apart by ``key``."""
    own = f'label_replace(trackside_training_{key}{{RANK}}, "key", "{key}", "run", ".*")'
    return f"avg by (key) ({own} or trackside_training_value{{RANK, {matcher}}})"


def loss() -> object:
    """Of training and of evaluation."""
    panel = lines(
        "Loss",
        "Losses of training and of evaluation by key, each a mean over the ranks, and the band of the training loss from rank "
        "to rank. A jump or a rise has an alert; compare it with the gradient norm. One rank alone: its data or its GPU.",
        "none",
        Query("min(trackside_training_loss{RANK})", LOWEST),
        Query("max(trackside_training_loss{RANK})", HIGHEST),
        Query(by_key("loss", f'key=~"{KEYS["loss"]}"'), "{{key}}"),
    )
    return band(panel)


def row() -> Row:
    """All but the loss, which is on the first screen."""
    return Row("Loss and optimization", *_values(), *_optimizer())


def _values() -> list[object]:
    return [
        lines(
            "Evaluation and other values",
            "Accuracy, and what is pushed under keys of the user's own, such as eval/loss, each a mean over the ranks. "
            "An evaluation that rises while the training loss falls is overfitting.",
            "none",
            Query(by_key("accuracy", f'key!~"{KEYS["gradient"]}|{KEYS["rate"]}"'), "{{key}}"),
        ),
        lines(
            "Gradient norm",
            "Norm of the gradients before clipping, on a logarithmic axis, a mean over the ranks. A rise of several times "
            "often comes steps before the loss jumps; near 0 hardly anything is learnt.",
            "none",
            Query(by_key("grad_norm", f'key=~"{KEYS["gradient"]}"'), "{{key}}"),
            log=True,
        ),
    ]


def _optimizer() -> list[object]:
    return [
        lines(
            "Learning rate",
            "As pushed. Compare it with the schedule that was meant: warm-up, peak and end. A jump of a hundredfold, or 0 for "
            "long, is LearningRateOutOfRange.",
            "none",
            Query(by_key("learning_rate", f'key=~"{KEYS["rate"]}"'), "{{key}}"),
        ),
        lines(
            "Values that are no numbers",
            "How often NaN or infinity was pushed, by key, over all ranks. More than 0 of a loss is NonFinite: stop the run, "
            "and go on from the checkpoint before it.",
            "none",
            Query("sum by (key) (increase(trackside_training_nonfinite_total{RANK}[$__rate_interval]))", "{{key}}"),
            least=0,
        ),
    ]
