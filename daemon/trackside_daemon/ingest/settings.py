"""The settings of the sockets that accept pushes."""

from typing import Annotated

from pydantic import BeforeValidator

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Texts, setting, text


class PushSection(Section):
    """The sockets that accept pushes."""

    endpoint: Texts = setting(
        "Where to accept pushes, ipc://PATH or tcp://HOST:PORT; may be repeated. Other machines can push only with push.keys.",
        (),
        examples=["ipc:///run/trackside/push.sock"],
        json_schema_extra={"repeatable": True},
    )
    keys: str = setting(
        "Directory that `trackside keys` made; tcp endpoints then accept only clients that have a key.", ""
    )
    group: Annotated[str, BeforeValidator(text)] = setting(
        "Group, by name or number, whose members may push too; for a socket in /run/trackside, the default is trackside.",
        "",
    )
