"""Alerts of imported runs: they belong to another machine and send no notification here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from histories import history

from trackside_daemon.history.read import alert_reader
from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from pathlib import Path

HEAD = '{"kind":"run","id":"a","name":"a","attempt_list":[{"attempt":0,"state":"running","started":1}]}\n'
SAMPLE = '{"attempt":0,"rank":0,"step":1,"time":3.0,"x":1}\n'


def test_an_alert_of_an_imported_run_is_none_of_this_machine_unless_it_began_here(tmp_path: Path) -> None:
    now = time.time()
    alerts = "".join(
        f'{{"kind":"alert","alert":"NonFinite","severity":"critical","started":{at}{ends}}}\n'
        for at, ends in ((now - 900, ""), (now - 600, f',"ended":{now - 500}'), (9e10, ""))
    )
    with history(tmp_path) as one:
        one.import_file((HEAD + alerts + SAMPLE).encode(), "a.jsonl")
        here = Alert("NonFinite", "critical", time.time(), "a", {})
        one.put([here])
        with one.database.reading() as connection:
            assert len(alert_reader.alerts(connection, alert_reader.AlertFilter("a"))) == 4
            assert alert_reader.firing(connection, time.time()) == [here]
            assert alert_reader.ended(connection, 0.0, time.time()) == []
