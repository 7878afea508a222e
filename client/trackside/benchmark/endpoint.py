"""Requests to an OpenAI-compatible endpoint that streams its answers, and the times of their tokens.

The measures are those of the field: TTFT, from the request to the first token; TPOT, from the first token to the last one
divided by the tokens after the first; end to end, which is `LATENCY`. What fails is
counted by its kind and has no times.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from trackside.benchmark.messages import LATENCY, OUTCOMES, REQUESTS, TOKENS, Load
from trackside.benchmark.rounds import TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from http.client import HTTPResponse

    from trackside.benchmark.messages import Requests, Samples
    from trackside.benchmark.rounds import Sampling

TTFT, TPOT = "ttft_seconds", "tpot_seconds"
EACH = 4  # requests of each connection in a round
FAILED_ROUNDS = 3  # rounds without an answer after which an endpoint is given up


class RequestOutcome(NamedTuple):
    """The outcome of a request, and if it completed, its times by measure; *tokens* counts what was generated."""

    outcome: str
    times: dict[str, float] = {}  # noqa: RUF012  of a tuple, which nobody changes
    tokens: int = 0
    reason: str = ""


class ModelEndpoint:
    """An endpoint that requests are sent to.

    Args:
        url: Address up to ``/v1``.
        requests: What to send.
    """

    def __init__(self, url: str, requests: Requests) -> None:
        self._url = urlsplit(url)
        self._path = f"{self._url.path.rstrip('/') or '/v1'}/chat/completions"
        self._requests = requests
        self._numbers = count()
        self._workers = 1
        self._failed = 0

    def begin(self, load: Load) -> Callable[[Sampling], Samples]:
        """Send one request, which shows whether the endpoint works; return `measure`.

        Raises:
            TargetError: It does not.
        """
        self._workers = max(1, load.concurrency)
        answer = self._send()
        if answer.outcome != "completed":
            raise TargetError(f"{self._url.geturl()}: {answer.reason}")
        return self.measure

    def measure(self, sampling: Sampling) -> Samples:  # noqa: ARG002  a round has requests enough
        """Send the requests of one round; return their times, rates, and the number of each outcome.

        Raises:
            TargetError: The endpoint works no more.
        """
        begun = perf_counter()
        with ThreadPoolExecutor(self._workers) as pool:
            lists = pool.map(lambda _: [self._send() for _ in range(EACH)], range(self._workers))
            answers = [answer for answers in lists for answer in answers]
        self._failed = 0 if any(answer.outcome == "completed" for answer in answers) else self._failed + 1
        if self._failed == FAILED_ROUNDS:
            raise TargetError(f"{self._url.geturl()}: {answers[-1].reason}")
        return self._samples(answers, perf_counter() - begun)

    def _samples(self, answers: Sequence[RequestOutcome], seconds: float) -> Samples:
        completed = [answer for answer in answers if answer.outcome == "completed"]
        samples = {name: [one.times[name] for one in completed if name in one.times] for name in (LATENCY, TTFT, TPOT)}
        samples[TOKENS] = [sum(answer.tokens for answer in completed) / seconds]
        samples[REQUESTS] = [len(completed) / seconds]
        return samples | {name: [float(sum(one.outcome == name for one in answers))] for name in OUTCOMES}

    def _send(self) -> RequestOutcome:
        """Send one request on a new connection, whose making is no part of its times; read its answer."""
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=self._requests.timeout)
        times: list[float] = []
        try:
            connection.connect()
            begun = perf_counter()
            headers = {"Content-Type": "application/json", **self._requests.headers}
            connection.request("POST", self._path, self._body(), headers)
            return self._read(connection.getresponse(), begun, times)
        except TimeoutError:
            return RequestOutcome("timeout", reason=f"no complete answer within {self._requests.timeout:g} s")
        except (OSError, HTTPException, ValueError, AttributeError, TypeError) as error:
            outcome = "cut" if times or isinstance(error, IncompleteRead) else "error"
            return RequestOutcome(outcome, reason=f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    def _read(self, response: HTTPResponse, begun: float, times: list[float]) -> RequestOutcome:
        """Read an answer; *times* receives the time of each part of its text.

        Raises:
            TimeoutError: It lasts too long.
        """
        if response.status != 200:
            return RequestOutcome("error", reason=f"HTTP {response.status}: {_first_line(response.read(500))}")
        finished, stated = False, 0
        for event in _events(response):
            if perf_counter() - begun > self._requests.timeout:
                raise TimeoutError
            if "error" in event:
                return RequestOutcome("error", reason=_first_line(json.dumps(event["error"]).encode()))
            stated = (event.get("usage") or {}).get("completion_tokens") or stated
            choice = (event.get("choices") or [{}])[0]
            if (choice.get("delta") or {}).get("content"):
                times.append(perf_counter())
            finished = finished or bool(choice.get("finish_reason"))
        if not finished:
            return RequestOutcome("cut", reason="the stream ended without finish_reason")
        return _completed(begun, times, stated) if times else RequestOutcome("error", reason="the answer has no text")

    def _body(self) -> bytes:
        prompt = self._requests.prompts[next(self._numbers) % len(self._requests.prompts)]
        fields = {"model": self._requests.model, "max_tokens": self._requests.tokens, "temperature": 0, "stream": True}
        messages = [{"role": "user", "content": prompt}]
        return json.dumps({**fields, "stream_options": {"include_usage": True}, "messages": messages}).encode()


def _completed(begun: float, times: Sequence[float], stated: int) -> RequestOutcome:
    """Return a complete answer; without a *stated* number of tokens, each part is one. A single part has no TPOT."""
    tokens = max(stated, len(times))
    measured = {LATENCY: times[-1] - begun, TTFT: times[0] - begun}
    if len(times) > 1:
        measured[TPOT] = (times[-1] - times[0]) / (tokens - 1)
    return RequestOutcome("completed", measured, tokens)


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events up to ``[DONE]``."""
    while line := response.readline():
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data == b"[DONE]":
            return
        if line.startswith(b"data:") and data:
            yield json.loads(data)


def _first_line(data: bytes) -> str:
    return " ".join(data.decode(errors="replace").split())[:200]
