"""Values that a rank pushes, and the series that show them."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace
from wire_messages import WALL, FakeSession, RunsHarness, SeriesKey, clock, pushed

from trackside.transport.session import Session
from trackside.wire import DURATION_BUCKETS, Clock, Device, Histogram, Memory, Pushes, Totals, decode_body
from trackside_daemon.model.metric import Distribution
from trackside_daemon.training.totals import summed

if TYPE_CHECKING:
    from trackside.wire import Hello


@pytest.fixture
def fake_session(house: RunsHarness) -> FakeSession:
    """A session that has sent its hello."""
    return house.greet()


def nonfinite(house: RunsHarness) -> dict[str, object]:
    return {one.labels[2]: value for one, value in house.page().items() if one.family == "nonfinite_total"}


def durations(*counts: int, total: float) -> Histogram:
    """Return a histogram with counts in the first buckets, and its sum in seconds."""
    return Histogram([*counts, *[0] * (len(DURATION_BUCKETS) + 1 - len(counts))], total)


def test_known_keys_have_families_of_their_own_and_others_retain_the_users_name(
    house: RunsHarness, fake_session: FakeSession
) -> None:
    house.push(fake_session, {"loss": 2.5, "accuracy": 0.5, "grad_norm": 1.5, "epoch": 3.0, 'eval/bleu "x"\n': 31.2})
    assert [house.get(family) for family in ("loss", "accuracy", "grad_norm", "epoch")] == [2.5, 0.5, 1.5, 3.0]
    assert house.get("value", "train", "0", 'eval/bleu "x"\n') == 31.2


def test_of_several_rows_and_blocks_the_newest_value_of_each_key_is_shown(
    house: RunsHarness, fake_session: FakeSession
) -> None:
    blocks = [
        pushed(["loss", "lr"], (1.0, 1, (3.0, 0.1)), (2.0, 2, (2.0, 0.2))),
        pushed(["loss"], (3.0, 3, (1.0,))),
        pushed(["bleu"], (4.0, 3, (31.0,))),
    ]
    house.ingest(fake_session.id, Pushes(clock(5.0), Totals(pushes=4, steps=3), blocks))
    assert (house.get("loss"), house.get("learning_rate")) == (1.0, 0.2)
    assert house.get("value", "train", "0", "bleu") == 31.0
    assert (house.get("step"), house.get("last_step_timestamp_seconds")) == (3.0, WALL + 4)


def test_values_that_come_late_turn_neither_the_step_nor_its_time_back(
    house: RunsHarness, fake_session: FakeSession
) -> None:
    blocks = [
        pushed(["lr"], (3.0, 7, (0.1,)), (4.0, 8, (0.2,))),
        pushed(["loss"], (2.0, 6, (0.6,)), (3.0, 7, (0.7,))),
    ]
    house.ingest(fake_session.id, Pushes(clock(5.0), Totals(pushes=3, steps=3), blocks))
    assert (house.get("loss"), house.get("step"), house.get("last_step_timestamp_seconds")) == (0.7, 8.0, WALL + 4)


@pytest.mark.parametrize(
    "pushes",
    [
        [({"lr": 0.1}, 0.1), ({"lr": 0.2}, 0.2), ({"learning_rate": 0.3}, 0.3), ({"lr": 0.4}, 0.3)],
        [({"lr": 0.1, "learning_rate": 0.2}, 0.2), ({"lr": 0.3}, 0.2)],
        [({"learning_rate": 0.2, "lr": 0.1}, 0.2), ({"lr": 0.3}, 0.2)],
    ],
)
def test_lr_is_the_learning_rate_unless_that_was_pushed(
    house: RunsHarness, fake_session: FakeSession, pushes: list[tuple[dict[str, float], float]]
) -> None:
    for values, shown in pushes:
        house.push(fake_session, values)
        assert house.get("learning_rate") == shown


def test_amounts_are_counters_and_not_values(house: RunsHarness, fake_session: FakeSession) -> None:
    house.push(fake_session, {"loss": 1.0})
    assert (house.get("samples_total"), house.get("tokens_total")) == (None, None)
    house.push(fake_session, {"loss": 1.0, "samples": 32.0, "tokens": 4096.0}, samples=320.0, tokens=40960.0)
    assert (house.get("samples_total"), house.get("tokens_total")) == (320.0, 40960.0)
    assert not [one for one in house.page() if one.family == "value"]


def test_nan_and_infinities_are_shown_and_counted(house: RunsHarness, fake_session: FakeSession) -> None:
    house.push(fake_session, {"loss": nan, "bleu": inf}, nonfinite={"loss": 3, "bleu": 1})
    assert isnan(cast("float", house.get("loss")))
    assert house.get("value", "train", "0", "bleu") == inf
    assert nonfinite(house) == {"loss": 3.0, "bleu": 1.0}


@pytest.mark.parametrize(
    ("pushed_keys", "counted"),
    [(("loss", "grad_norm", "bleu", "samples"), ("loss", "grad_norm")), (("learning_rate",), ("learning_rate",))],
)
def test_a_known_key_that_was_pushed_has_its_nonfinite_counter_at_0_from_the_beginning(
    house: RunsHarness, fake_session: FakeSession, pushed_keys: tuple[str, ...], counted: tuple[str, ...]
) -> None:
    house.push(fake_session, dict.fromkeys(pushed_keys, 1.0))
    assert nonfinite(house) == dict.fromkeys(counted, 0.0)


def test_the_clients_own_totals_are_shown(house: RunsHarness, fake_session: FakeSession) -> None:
    house.push(fake_session, {"loss": 1.0}, pushes=7, dropped=3, resent=2, overhead=0.25, steps=5)
    families = ("client_pushes_total", "client_dropped_total", "client_resent_total", "steps_total")
    assert [house.get(family) for family in families] == [7.0, 3.0, 2.0, 5.0]
    assert house.get("client_overhead_seconds_total") == 0.25


def test_the_totals_of_all_sessions_of_a_rank_are_summed(house: RunsHarness, fake_session: FakeSession) -> None:
    other = house.greet()
    step = durations(1, 2, total=0.005)
    house.push(
        fake_session, {"loss": 1.0}, pushes=3, overhead=0.5, samples=10.0, nonfinite={"loss": 1}, step_duration=step
    )
    house.push(other, {"loss": 2.0}, pushes=4, overhead=0.25, nonfinite={"loss": 2, "bleu": 1}, step_duration=step)
    assert house.get("client_pushes_total") == 7.0
    assert house.get("client_overhead_seconds_total") == 0.75
    assert house.get("samples_total") == 10.0
    assert nonfinite(house) == {"loss": 3.0, "bleu": 1.0}
    assert house.get("step_duration_seconds") == Distribution((2, 4, *[0] * 16), 0.01)


def test_of_memory_the_newest_state_counts_and_the_peak_of_all_sessions() -> None:
    earlier = Device(memory={"GPU-1": Memory(allocated=2, peak=9, out_of_memory=1)})
    later = Device(memory={"GPU-1": Memory(allocated=3, peak=5, out_of_memory=1)})
    both = summed([Totals(device=earlier), Totals(device=later)])
    assert both.device == Device(memory={"GPU-1": Memory(allocated=3, peak=9, out_of_memory=2)})


def test_totals_that_come_late_never_make_a_counter_fall(house: RunsHarness, fake_session: FakeSession) -> None:
    house.push(fake_session, {"loss": 1.0}, pushes=10, steps=10, overhead=1.0, step_duration=durations(9, total=0.009))
    house.push(fake_session, {"loss": 1.0}, pushes=5, steps=5, overhead=0.5, step_duration=durations(4, total=0.004))
    house.skip(fake_session.id, Totals(pushes=3, steps=3))
    assert (house.get("client_pushes_total"), house.get("steps_total")) == (10.0, 10.0)
    assert house.get("client_overhead_seconds_total") == 1.0
    assert cast("Distribution", house.get("step_duration_seconds")).counts[0] == 9


def test_a_skip_and_a_batch_without_rows_renew_the_totals(house: RunsHarness, fake_session: FakeSession) -> None:
    house.skip(fake_session.id, Totals(pushes=30, dropped=12))
    assert (house.get("client_pushes_total"), house.get("client_dropped_total")) == (30.0, 12.0)
    house.ingest(fake_session.id, Pushes(clock(), Totals(pushes=40, dropped=40), []))
    assert (house.get("client_dropped_total"), house.state_of()) == (40.0, "starting")


def real_session(steps: int) -> tuple[Session, Hello, list[Pushes]]:
    """Return a real session that pushed without a daemon, with its hello and its pending batches."""
    session = Session(FakeSession().identity, total_steps=1000)
    batches = []
    for step in range(1, steps + 1):
        at = 50_000_000_000 + step * 100_000_000
        session.rows.append((at, step, {"loss": 1.0 / step, "tokens": 10.0, "bleu": float(step)}))
        session.drain(Clock(at, at))
        batches.append(decode_body("batch", session.pending[-1].frames[2]))
    after = 50_000_000_000 + (steps + 1) * 100_000_000
    return session, decode_body("hello", session.hello(Clock(after, after))[2]), batches


def test_a_hello_after_a_daemon_restart_fills_the_page(house: RunsHarness) -> None:
    session, hello, _ = real_session(20)
    house.open(session.id, hello)
    assert house.state_of() == "running"
    assert (house.get("steps_total"), house.get("tokens_total"), house.get("step")) == (20.0, 200.0, 20.0)
    assert (house.get("loss"), house.get("value", "train", "0", "bleu")) == (1 / 20, 20.0)
    assert house.get("last_step_timestamp_seconds") == pytest.approx(52.0)
    assert house.get("progress_ratio") == 0.02
    assert cast("Distribution", house.get("step_duration_seconds")).sum == pytest.approx(1.9)
    assert nonfinite(house) == {"loss": 0.0}


def test_what_is_sent_again_after_a_hello_turns_nothing_back(house: RunsHarness) -> None:
    session, hello, batches = real_session(20)
    house.open(session.id, hello)
    reported = house.page()
    for batch in batches:
        house.ingest(session.id, batch)
        assert house.page() == reported, "each scrape in between sees the values of the hello, and not an older step"


def test_what_is_pushed_after_a_hello_is_shown(house: RunsHarness) -> None:
    session, hello, batches = real_session(3)
    house.open(session.id, hello)
    session.rows.append((51_000_000_000, 4, {"loss": 9.0}))
    session.drain(Clock(51_100_000_000, 51_100_000_000))
    for batch in (*batches, decode_body("batch", session.pending[-1].frames[2])):
        house.ingest(session.id, batch)
    assert (house.get("loss"), house.get("step"), house.get("steps_total")) == (9.0, 4.0, 4.0)


@pytest.mark.parametrize("total", [None, 0, -1])
def test_without_total_steps_or_with_ones_that_make_no_sense_there_is_no_progress(
    house: RunsHarness, total: int | None
) -> None:
    house.hello(FakeSession(), total_steps=total, last={"loss": 1.0}, step=5, progress_age=0)
    assert house.get("progress_ratio") is None
    assert house.get("remaining_seconds") is None


def test_progress_is_the_share_of_the_steps_done_and_what_remains_goes_by_the_pace(house: RunsHarness) -> None:
    fake_session = FakeSession()
    house.hello(fake_session, total_steps=10)
    house.push(fake_session, {"loss": 1.0}, step=1)
    assert (house.get("progress_ratio"), house.get("remaining_seconds")) == (0.1, None)
    house.push(fake_session, {"loss": 1.0}, step=2, step_duration=durations(0, 1, total=2.0))
    assert (house.get("progress_ratio"), house.get("remaining_seconds")) == (0.2, 16.0)
    house.push(fake_session, {"loss": 1.0}, step=4, step_duration=durations(0, 3, total=2.0 + 2 * 7.0))
    assert house.get("remaining_seconds") == pytest.approx(6 * 3.0), "a fifth of the way from 2 to 7 seconds"
    house.push(fake_session, {"loss": 1.0}, step=12)
    assert (house.get("progress_ratio"), house.get("remaining_seconds")) == (1.0, 0.0)


def test_steps_that_are_counted_from_0_reach_the_end_too(house: RunsHarness) -> None:
    fake_session = FakeSession()
    house.hello(fake_session, total_steps=2)
    house.push(fake_session, {"loss": 1.0}, step=0)
    assert house.get("progress_ratio") == 0.5
    house.push(fake_session, {"loss": 1.0}, step=1)
    assert house.get("progress_ratio") == 1.0


def test_a_duration_without_end_does_not_spoil_what_remains(house: RunsHarness) -> None:
    fake_session = FakeSession()
    house.hello(fake_session, total_steps=10)
    house.push(fake_session, {"loss": 1.0}, step=5, step_duration=durations(1, total=inf))
    house.push(fake_session, {"loss": 1.0}, step=6, step_duration=durations(2, total=inf))
    assert house.get("remaining_seconds") is None
    assert [one for one, value in house.page().items() if isinstance(value, float) and isnan(value)] == []


@pytest.mark.parametrize(
    "hello",
    [{}, {"step": 5}, {"progress_age": 5}, {"last": {"loss": 1.0}}],
    ids=["nothing", "no age", "no step", "neither"],
)
def test_a_hello_before_the_first_push_shows_no_progress(house: RunsHarness, hello: dict[str, Any]) -> None:
    house.hello(FakeSession(), **hello)
    assert house.state_of() == "starting"
    assert house.get("step") is None


def test_the_earliest_of_several_sessions_is_the_ranks_start(house: RunsHarness) -> None:
    for started in (WALL + 5, WALL - 5, WALL):
        fake_session = FakeSession()
        hello = replace(fake_session.hello(), started=round(started * 1e9))
        house.open(fake_session.id, hello)
    assert house.get("start_timestamp_seconds") == WALL - 5


def test_numbers_of_the_wildest_size_are_accepted(house: RunsHarness) -> None:
    fake_session = FakeSession()
    house.hello(fake_session, total_steps=2**63 - 1)
    house.push(
        fake_session,
        {"loss": 1e308, "bleu": 5e-324},
        step=-(2**63),
        pushes=2**64 - 1,
        steps=2**64 - 1,
        overhead=1.7e308,
        samples=inf,
    )
    other = house.greet()
    house.push(other, {"loss": 1.0}, step=2**63 - 1, pushes=2**64 - 1, overhead=1.7e308)
    page = house.page()
    assert page[SeriesKey("client_pushes_total", ("train", "0"))] == 2.0**65
    assert page[SeriesKey("client_overhead_seconds_total", ("train", "0"))] == inf
    assert page[SeriesKey("progress_ratio", ("train", "0"))] == 1.0
