"""A NaN is silenced: the page shows it, a restart keeps the silence, and its early end is seen at once."""

from __future__ import annotations

import getpass
import signal
from typing import TYPE_CHECKING, Any

from processes import Daemon, eventually, http

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable

LABELS = (
    '{alert="NonFinite",gpu="",k8s_namespace="",key="loss",partition="",rank="0",run="trouble",severity="critical",'
    f'subject="",tags="",user="{getpass.getuser()}",uuid=""}}'
)


def shown(daemon: Daemon) -> tuple[float | None, float | None]:
    """Return the values on the page for a firing and a silenced NaN alert."""
    series = daemon.series()
    return series.get(f"trackside_alert_firing{LABELS}"), series.get(f"trackside_alert_silenced{LABELS}")


def ask(daemon: Daemon, method: str, path: str, **options: Any) -> Any:
    token = (daemon.directory / "push.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    answer = http.request(method, f"{daemon.url}/api/v1/{path}", headers=headers, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def silenced_until(daemon: Daemon) -> list[float | None]:
    return [one["silenced_until"] for one in daemon.api("alerts").json()["alerts"] if one["alert"] == "NonFinite"]


def test_a_silence_is_on_the_page_outlives_the_daemon_and_can_be_ended_early(
    start_daemon: Callable[..., Daemon], daemon: Daemon
) -> None:
    with trackside.init("trouble", endpoint=daemon.endpoint) as training:
        training.push(step=1, loss=float("nan"))
        eventually(lambda: shown(daemon) == (1, None))
        made = ask(daemon, "POST", "silences", json={"labels": {"run": "tr*"}, "for": 3600})["silence"]
        eventually(lambda: shown(daemon) == (1, 1))
        daemon.stop(signal.SIGKILL)
        again = start_daemon()
        eventually(lambda: shown(again) == (1, 1))
        assert silenced_until(again) == [made["until"]]
        assert ask(again, "GET", "silences") == {"silences": [made]}
        ask(again, "DELETE", f"silences/{made['id']}")
        eventually(lambda: shown(again) == (1, None))
        assert silenced_until(again) == [None]
