"""The endpoint for agents: the Model Context Protocol over HTTP, and what only a running daemon can answer."""

import asyncio
import time
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Annotated, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trackside_daemon import __version__
from trackside_daemon.agents.fitting import MESSAGE_BYTES
from trackside_daemon.agents.protocol import Protocol
from trackside_daemon.agents.tools import CaptureArguments, WaitArguments
from trackside_daemon.captures.captures import CaptureError
from trackside_daemon.model.capture import CaptureBody
from trackside_daemon.questions.artifacts import Capture
from trackside_daemon.questions.question import Question
from trackside_daemon.web.api.captures import CapturesApi
from trackside_daemon.web.api.history_access import HistoryAccess, body_of, json_response, parsed
from trackside_daemon.web.api.waits import WaitCondition, Waits
from trackside_daemon.web.http.roles import ROLE, permits
from trackside_daemon.web.http.server import wait_for_disconnect

CAPTURE_SECONDS = 300.0  # longest wait for the summary of a capture
POLL_SECONDS = 0.5


class MessageParameters(Question, frozen=True, kw_only=True):
    """The parameters of a message."""

    actions: Annotated[
        bool,
        msgspec.Meta(
            description="Also offer the tools that act on a training, such as capture, if web.agent-actions does."
        ),
    ] = msgspec.field(default=False, name="allow-actions")


@dataclass(eq=False)
class AgentsApi:
    """Answers messages of agents."""

    _history: HistoryAccess
    _captures: CapturesApi
    _waits: Waits
    _: KW_ONLY
    actions: bool  # whether messages may ask for the tools that act on a training

    async def send_message(self, request: Request) -> Response:
        """Answer an agent's message of the Model Context Protocol."""
        data = await body_of(request, MESSAGE_BYTES)
        asked = parsed(MessageParameters, request).actions
        actions = asked and self.actions and permits(request.scope.get(ROLE), "write")
        answering = asyncio.ensure_future(self._protocol.answer(data, actions=actions))
        gone = asyncio.ensure_future(wait_for_disconnect(request.receive))
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():  # nobody reads the answer, such as that of a long wait
                return Response(status_code=202)
            answer = answering.result()
            return Response(status_code=202) if answer is None else json_response(answer)
        finally:
            answering.cancel()
            gone.cancel()

    async def wait(self, run: str, arguments: WaitArguments) -> dict[str, Any]:
        """See `LiveWork`."""
        since = time.time() if arguments.since is None else arguments.since
        alert = since if "alert" in arguments.until else None
        condition = WaitCondition(alert, "end" in arguments.until, arguments.step)
        reason, step = await self._waits.wait(run, condition, arguments.timeout_seconds)
        return {"reason": reason, "step": step}

    async def capture(self, run: str, arguments: CaptureArguments) -> dict[str, Any]:
        """See `LiveWork`."""
        steps = arguments.steps if arguments.kind == "profile" else None
        body = CaptureBody(arguments.kind, "api", steps=steps, stacks=arguments.stacks)
        try:
            found = await self._captures.begin(run, body)
            until = time.monotonic() + CAPTURE_SECONDS
            while found["state"] not in {"summarised", "failed"} and time.monotonic() < until:
                await asyncio.sleep(POLL_SECONDS)
                found = await self._history.answer(Capture(capture=found["id"]))
        except (CaptureError, HTTPException) as error:
            raise LookupError(error.detail if isinstance(error, HTTPException) else str(error)) from None
        return {"text": [], **found}

    @cached_property
    def _protocol(self) -> Protocol:
        from trackside_daemon.agents.answers import Answers  # most daemons answer no agent

        return Protocol(Answers(self._history.ask, self), __version__)
