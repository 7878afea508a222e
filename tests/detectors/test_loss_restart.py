"""A loss that begins anew where the training went back."""

from __future__ import annotations

from detectors.losses import alarms, column, ends, falling, found

from trackside_daemon.detectors.loss_restart import LossRestart


def test_a_step_that_falls_is_found_at_once_and_is_over_when_caught_up() -> None:
    values = falling(400)
    findings = found(LossRestart(), column(values[:300] + values[250:], [*range(300), *range(250, 400)]))
    assert [(finding.at, finding.over, finding.severity) for finding in findings] == [
        (300, False, "info"),
        (349, True, "info"),
    ]
    assert "went back to step 250 from 299" in findings[0].text


def test_a_model_made_anew_is_seen_by_its_loss() -> None:
    values = falling(400, start=8, end=0.5) + falling(400, start=8, end=0.5)
    findings = found(LossRestart(), column(values))
    assert [(one.at, one.severity) for one in findings if not one.over] == [(424, "warning")]
    assert "since step 400 the loss is like that of the first steps" in findings[0].text
    assert findings[0].text.endswith(" before: the model seems to be new")
    assert ends(findings, "LossRestart") == [465]


def test_a_step_that_counts_within_epochs_is_no_restart() -> None:
    values = falling(400)
    assert not found(LossRestart(), column(values, [i % 50 for i in range(400)]))


def test_from_the_first_step_anew_is_one_when_the_loss_is() -> None:
    values = falling(400)
    findings = found(LossRestart(), column(values * 2, [*range(400), *range(400)]))
    assert alarms(findings, "LossRestart") == [400]


def test_a_healthy_run_is_quiet() -> None:
    assert not found(LossRestart(), column(falling(5000, noise=0.1)))


def test_a_spike_as_high_as_the_beginning_is_no_restart() -> None:
    values = falling(400, start=8, end=0.5)
    values[300] = 8.0
    values[350:352] = [8.0, 3.0]
    assert not found(LossRestart(), column(values))


def test_a_step_that_falls_to_a_new_model_is_reported_once() -> None:
    values = falling(400, start=8, end=0.5)
    assert alarms(found(LossRestart(), column(values * 2, [*range(400)] * 2)), "LossRestart") == [400]


def test_a_loss_that_leaps_and_comes_back_is_no_restart() -> None:
    leap = [8.0 * 0.8**i + 0.5 for i in range(100)]
    for values in (falling(400, end=0.5) + leap, falling(400, end=0.5) + leap + falling(400, end=0.5)):
        assert not found(LossRestart(), column(values))


def test_a_resume_without_the_weights_is_a_warning() -> None:
    values = falling(400, start=8, end=0.5)
    steps = [*range(400), *range(300, 400)]
    (finding, *_) = found(LossRestart(), column([*values, *falling(100, start=8, end=0.5)], steps))
    assert (finding.at, finding.severity) == (400, "warning")
    (finding, *_) = found(LossRestart(), column([*values, *values[300:]], steps))
    assert (finding.at, finding.severity) == (400, "info")
