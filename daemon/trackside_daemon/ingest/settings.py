"""The settings of the sockets that accept pushes."""

from typing import Annotated

from pydantic import BeforeValidator

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Texts, setting, text


class PushSection(Section):
    """The sockets that accept pushes."""

    endpoint: Texts = setting(
        "Where to accept pushes, ipc://PATH or tcp://HOST:PORT; may be repeated. Other machines need push.keys.",
        (),
        examples=["ipc:///run/trackside/push.sock"],
        json_schema_extra={"repeatable": True},
    )
    keys: str = setting("Directory of `trackside keys`; tcp endpoints then accept only clients with a key.", "")
    group: Annotated[str, BeforeValidator(text)] = setting(
        "Group whose members may push too, by name or number; for a socket in /run/trackside by default trackside.", ""
    )
