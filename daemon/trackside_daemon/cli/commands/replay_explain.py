"""Output of `trackside replay --explain`: why an alert fires at a step or does not, by the settings that decide it."""

from collections.abc import Iterator, Sequence

from trackside_daemon.cli.errors import CommandError
from trackside_daemon.detectors.rank_detectors import ALERTS
from trackside_daemon.detectors.settings import DetectorThresholds
from trackside_daemon.detectors.what_if import Decision, RecordedPushes, decisions
from trackside_daemon.documents.text import table, wrapped
from trackside_daemon.model.text import number, shown

SAMPLES = 8  # last samples of the key to print


def check(alert: str) -> None:
    """Check that an alert can be explained.

    Raises:
        CommandError: It cannot be replayed.
    """
    if alert not in ALERTS:
        raise CommandError(
            f"--explain {shown(alert)}: this alert is not replayed; give one of {', '.join(sorted(ALERTS))}"
        )


def explain(
    recording: RecordedPushes, alert: str, step: int, rank: int, thresholds: DetectorThresholds
) -> Iterator[str]:
    """Yield lines about whether an alert fires at a step of a rank, and about what decides it.

    Raises:
        CommandError: The rank has not pushed this step.
    """
    steps = recording.steps(rank)
    if step not in steps:
        raise CommandError(f"--at {step}: {_missing(steps, step, rank)}")
    before = recording.until(step, rank)
    fires = before.firing(alert, thresholds)
    replayed = before.replayed(thresholds)
    if fires is None:
        yield f"{alert} does not fire at step {step:,} of rank {rank}"
    else:
        since = f" since step {fires.step:,}" if fires.step != step else ""
        yield f"{alert} fires at step {step:,} of rank {rank}{since}: {fires.severity}, {shown(fires.key)}"
        yield from wrapped(shown(fires.message))
        reading = next((why for _, key, why in replayed.readings() if key == fires.key), "")
        if reading:
            yield f"  {shown(fires.key)} is read as an objective, which raises information at most: {shown(reading)}"
        yield "  last samples: " + ", ".join(
            f"{at:,}: {number(value)}" for at, value in before.last(fires.key, SAMPLES)
        )
    if tests := list(replayed.tests(alert)):
        rows = [[shown(key), test.what, number(test.value), number(test.needed)] for key, test in tests]
        yield ""
        yield from table(["KEY", "TEST", "VALUE", "MORE THAN"], rows, right="<<>>", flexible="    ")
    found = decisions(alert, thresholds, lambda other: before.firing(alert, other) is not None)
    yield ""
    failed = next((test.what for _, test in tests if test.value <= test.needed), "")
    yield from _decided(found, failed, fires=fires is not None)


def _missing(steps: Sequence[int], step: int, rank: int) -> str:
    if not steps:
        return f"rank {rank} has pushed nothing"
    nearest = min(steps, key=lambda other: abs(other - step))
    return f"rank {rank} has not pushed this step; the nearest is {nearest}"


def _decided(found: Sequence[Decision], failed: str, *, fires: bool) -> Iterator[str]:
    if not found:
        yield "this alert has no setting but alerts.off; docs/detectors.md describes its test"
        return
    rows = [[one.name, number(one.value), "-" if one.turns is None else number(one.turns)] for one in found]
    yield from table(["SETTING", "VALUE", "ENDS AT" if fires else "FIRES AT"], rows, right="<>>", flexible="   ")
    nearest = found[0]
    if nearest.turns is None:
        decides = f"the test '{failed}' decides" if failed else "another test decides"
        yield f"no value of one setting changes this: {decides}, which docs/detectors.md describes"
    else:
        yield (
            f"decides: {nearest.name}, by a factor of {nearest.factor:.3g}; try it with "
            f"alerts.thresholds: {{{nearest.name}: {nearest.turns:.3g}}} in --config.file"
        )
