"""Distributions of layers in the history: nothing is lost by merging, levels shorten long runs, ranks are one model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from histories import History, ingested, opened
from history.builders import instructions
from layer_frames import attention, buckets_of, column_values, frame, normal
from session_records import batch_ingested

from trackside_daemon.history.layer_rows import MERGED, after, read
from trackside_daemon.history.read.layers import LayerWindow, distribution, heat_map, kinds, quantiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside.wire import DistributionFrame

STEPS = MERGED**3 + MERGED + 3


@pytest.fixture
def history(place: Path) -> Iterator[History]:
    made = History(place)
    yield made
    made.close()


def write(history: History, frames: list[DistributionFrame], rank: int = 0) -> None:
    record = opened("id-1", name="train", rank=rank)
    history.put([record, batch_ingested(record.session.id, 1, distributions=frames)])


def layers(step: int) -> dict[str, list[float]]:
    return {"embed": normal(step), "blocks.0.mlp": [*normal(step + 1000, scale=0.01), 0.0]}


def test_what_was_sent_is_read_again(history: History) -> None:
    write(history, [frame(step, layers(step)) for step in range(3)])
    with history.database.reading() as connection:
        (stream,) = connection.execute("SELECT id FROM stream WHERE id != 0").fetchone()
        rows = after(connection, stream, 0, 10)
        assert [(kind, one.step) for _, kind, one in rows] == [("weights", 0), ("weights", 1), ("weights", 2)]
        one = rows[1][2]
        assert one.names == ["embed", "blocks.0.mlp"]
        assert one.buckets[1] == buckets_of(layers(1)["blocks.0.mlp"]).packed()
        assert one.columns["std"][0] == pytest.approx(column_values(layers(1)["embed"])["std"])
        assert [one.step for *_, one in after(connection, stream, rows[0][0], 1)] == [1]


def test_levels_have_every_value_of_the_steps_below(history: History) -> None:
    write(history, [frame(step, layers(step)) for step in range(STEPS)])
    with history.database.reading() as connection:
        (stream,) = connection.execute("SELECT id FROM stream WHERE id != 0").fetchone()
        below, above = read(connection, stream, "weights", 0), read(connection, stream, "weights", 2)
        assert len(below) == STEPS
        assert (above[0].first, above[0].step) == (0, MERGED * MERGED - 1)
        values = [value for step in range(MERGED * MERGED) for value in layers(step)["embed"]]
        assert above[0].buckets[0] == buckets_of(values).packed()
        assert above[0].columns["largest"][0] == pytest.approx(max(map(abs, values)))


def test_a_map_has_all_steps_in_as_many_columns_as_requested(history: History) -> None:
    write(history, [frame(step, layers(step)) for step in range(STEPS)])
    for points in (4, 30, STEPS):
        with history.database.reading() as connection:
            found = heat_map(connection, LayerWindow("id-1", "weights", points=points), "norm")
        assert points / 2 <= len(found["steps"]) <= points
        assert found["steps"][-1] == STEPS - 1
        assert found["layers"] == ["embed", "blocks.0.mlp"]
        assert [len(row) for row in found["values"]] == [len(found["steps"])] * 2
    with history.database.reading() as connection:
        part = heat_map(connection, LayerWindow("id-1", "weights", first=20, last=29), "norm")
    assert part["steps"] == list(range(20, 30))


def test_ranks_are_merged_into_the_whole_model(history: History) -> None:
    whole = normal(4, 400, scale=3.0)
    write(history, [frame(7, {"layer": whole[:100]}, update_ratio=0.01, rank=2.0)], rank=0)
    write(history, [frame(7, {"layer": whole[100:]}, update_ratio=0.01, rank=3.0)], rank=1)
    with history.database.reading() as connection:
        (both,) = distribution(connection, LayerWindow("id-1", "weights"), "layer")["columns"]
        alone = heat_map(connection, LayerWindow("id-1", "weights", frozenset({1})), "size")
    expected = column_values(whole) | {"update_ratio": 0.01, "rank": 3.0}
    assert both == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}
    assert alone["values"] == [[300.0]]


def test_quantiles_are_those_of_the_values_to_a_factor_of_two() -> None:
    values = sorted([*normal(3, 1000), *[0.0] * 100])
    for share, found in zip(
        (0.05, 0.25, 0.75, 0.95), quantiles(buckets_of(values), (0.05, 0.25, 0.75, 0.95)), strict=True
    ):
        exact = values[round(share * len(values))]
        assert 0.5 <= found / exact <= 2


def test_heads_of_attention_have_no_distribution(history: History) -> None:
    write(history, [attention(step, {"attn/0": (0.5, 3.0), "attn/1": (0.9, 4.0 + step)}) for step in range(MERGED)])
    with history.database.reading() as connection:
        assert kinds(connection, "id-1") == ["attention"]
        found = heat_map(connection, LayerWindow("id-1", "attention", points=1), "logit")
        one = distribution(connection, LayerWindow("id-1", "attention", points=1), "attn/0")
    assert found["values"] == [[3.0], [4.0 + MERGED - 1]]
    assert one["counts"] == [{"zeros": 0, "nonfinite": 0, "bounds": (), "counts": ()}]


def test_a_damaged_row_is_a_damaged_history(history: History) -> None:
    write(history, [frame(0, layers(0))])
    history.writer.call(lambda store: store.connection.execute("UPDATE distribution SET numbers = x'c1'")).result(60)
    with history.database.reading() as connection, pytest.raises(ValueError, match="damaged"):
        heat_map(connection, LayerWindow("id-1", "weights"), "norm")


def test_an_export_as_json_lines_restores_every_distribution(history: History) -> None:
    record = opened("id-1", name="train")
    frames = [frame(step, layers(step), update_ratio=float("nan"), rank=2.0) for step in range(3)]
    frames.append(attention(3, {"attn/0": (0.5, 3.0)}))
    history.put([record, ingested("id-1", [(0, 1_700_000_000_000_000, {"loss": 1.0})])])
    history.put([batch_ingested(record.session.id, 2, distributions=frames)])
    exported = history.export("id-1", "jsonl")
    history.import_file(exported, "run.jsonl", id="id-2")
    stored = "SELECT kind, level, number, first, step, time, numbers, buckets FROM distribution WHERE stream = ?"
    with history.database.reading() as connection:
        streams = [row[0] for row in connection.execute("SELECT id FROM stream WHERE id != 0 ORDER BY id")]
        first, second = (connection.execute(stored, (stream,)).fetchall() for stream in streams)
    assert len(first) == 4
    assert [(row[:5], row[6:]) for row in first] == [(row[:5], row[6:]) for row in second]


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"layers","step":1,"time":1,"of":"weights","layers":{"a":{"size":1}}}',
        b'{"kind":"layers","step":1,"time":1,"of":"x","layers":{}}',
        b'{"kind":"layers","step":1,"of":"attention","layers":[]}',
        b'{"kind":"layers","attempt":[],"step":1}',
    ],
)
def test_a_damaged_line_of_layers_is_named(history: History, line: bytes) -> None:
    samples = b'{"kind":"samples","attempt":0,"rank":0,"step":1,"time":1700000000.0,"values":{"loss":1.0}}'
    result = history.import_file(samples + b"\n" + line + b"\n", "run.jsonl")
    assert (result.samples, result.notes) == (1, ["left out: 1 damaged line: line 2"])


def test_the_next_rows_of_a_rank_are_found_without_a_reading_of_all_others(history: History) -> None:
    write(history, [frame(step, {"x": [1.0]}) for step in range(500)])
    other = opened("id-2", name="other")
    history.put([other])
    with history.database.reading() as connection:
        first, second = (id_ for (id_,) in connection.execute("SELECT id FROM stream WHERE id != 0 ORDER BY id"))
        assert after(connection, second, 0, 64) == []
        assert instructions(connection, lambda: after(connection, second, 0, 64)) < 1000
        last = after(connection, first, 0, 500)[-1][0]
    history.put([batch_ingested(other.session.id, 1, distributions=[frame(step, {"x": [1.0]}) for step in range(500)])])
    with history.database.reading() as connection:
        assert after(connection, first, last, 64) == []
        assert instructions(connection, lambda: after(connection, first, last, 64)) < 1000
        assert [one.step for *_, one in after(connection, second, 0, 2)] == [0, 1]
