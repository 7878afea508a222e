"""Values of layers on the page: only those of chosen layers, and within the limits of series."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from layer_frames import attention, frame
from wire_messages import RunsHarness

if TYPE_CHECKING:
    from trackside.wire import DistributionFrame

FAMILY = "trackside_layer_"
LAYERS = {"blocks.0.mlp": [3.0, -4.0], "blocks.1.mlp": [0.0, 2.0], "head": [1.0]}


def push(house: RunsHarness, *frames: DistributionFrame, late: bool = False) -> set[tuple[str, ...]]:
    """Push a step with distributions, and return what is on the page: family, kind and layer."""
    session = house.greet()
    for _ in range(2):  # what is refused is counted once
        pushes = session.pushes({"mine": 1.0})
        pushes.distributions = list(frames)
        house.ingest(session.id, pushes, late=late)
    return {(one.family, *one.labels[2:]) for one in house.page() if one.family.startswith(FAMILY)}


def test_no_layer_is_on_the_page_unless_it_is_chosen() -> None:
    assert push(RunsHarness(), frame(1, LAYERS)) == set()


def test_the_values_of_chosen_layers_are_on_the_page() -> None:
    house = RunsHarness(layers=("*.0.*", "nothing"))
    found = push(house, frame(1, LAYERS, update_ratio=0.5, rank=2.0), attention(1, {"blocks.0.attn/3": (0.5, 8.0)}))
    columns = ("norm", "mean", "std", "largest", "zeros_ratio", "nonfinite_ratio", "update_ratio", "update_rank")
    assert found == {
        *((FAMILY + column, "weights", "blocks.0.mlp") for column in columns),
        (FAMILY + "attention_entropy_ratio", "attention", "blocks.0.attn/3"),
        (FAMILY + "attention_largest_logit", "attention", "blocks.0.attn/3"),
    }
    assert house.get(FAMILY + "norm", "train", "0", "weights", "blocks.0.mlp") == 5.0


def test_what_was_not_measured_or_comes_late_is_left_out() -> None:
    families = {family for family, *_ in push(RunsHarness(layers=("*",)), frame(1, LAYERS, update_ratio=nan, rank=nan))}
    assert FAMILY + "update_ratio" not in families
    assert FAMILY + "norm" in families
    assert push(RunsHarness(layers=("*",)), frame(1, LAYERS), late=True) == set()


def test_layers_share_the_limits_of_keys_and_what_is_over_them_is_counted_once() -> None:
    house = RunsHarness(layers=("*",), keys=5)
    assert len(push(house, frame(1, LAYERS))) == 4  # the pushed key is the fifth
    assert house.rejected() == {"keys": 6 * 3 - 4}
    assert push(RunsHarness(layers=("*",), label_bytes=24), frame(1, {"x" * 40: [1.0], "y": [1.0]})) == {
        (FAMILY + column, "weights", "y")
        for column in ("norm", "mean", "std", "largest", "zeros_ratio", "nonfinite_ratio")
    }
