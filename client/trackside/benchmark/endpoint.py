"""Requests to an OpenAI-compatible endpoint that streams its answers, and the times of their tokens.

The measures are those of the field: TTFT, from the request to the first token; TPOT, from the first token to the last one
divided by the tokens after the first; ITL, the gaps between what arrives; end to end, which is `LATENCY`. In an open loop,
times begin when a request is due, not when a busy client sends it (coordinated omission). What fails is counted by its kind
and has no times.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from itertools import count, pairwise
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from trackside.benchmark.messages import LATENCY, OUTCOMES, RATES, TOKENS, Load
from trackside.benchmark.rounds import SEED, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from http.client import HTTPResponse

    from trackside.benchmark.messages import Requests, Samples
    from trackside.benchmark.rounds import Sampling

TTFT, TPOT, ITL = "ttft_seconds", "tpot_seconds", "itl_seconds"
EACH = 4  # requests of each connection in a round
OPEN_REQUESTS = 16  # least requests of a round of an open loop; more if many are in flight, whose number settles first
FAILED_ROUNDS = 3  # rounds without an answer after which an endpoint is given up
MOST_IN_FLIGHT = 1024


class Answer(NamedTuple):
    """The outcome of a request, and if it completed, its times by measure; *tokens* counts what was generated."""

    outcome: str
    times: dict[str, list[float]] = {}  # noqa: RUF012  of a tuple, which nobody changes
    tokens: int = 0
    reason: str = ""


class Endpoint:
    """An endpoint that requests are sent to.

    Args:
        url: Address up to ``/v1``, or of ``/chat/completions`` or ``/completions`` below it.
        requests: What to send.
    """

    def __init__(self, url: str, requests: Requests) -> None:
        self._url = urlsplit(url)
        path = self._url.path.rstrip("/")
        self._path = path if path.endswith("/completions") else f"{path or '/v1'}/chat/completions"
        self._requests = requests
        self._numbers = count()
        self._load = Load()
        self._arrivals = random.Random(SEED)  # noqa: S311  no secret
        self._typical = 0.0
        self._failed = 0

    def begin(self, load: Load) -> Callable[[Sampling], Samples]:
        """Send one request, which shows whether the endpoint works; return `measure`.

        Raises:
            TargetError: It does not.
        """
        self._load = load
        answer = self._send()
        if answer.outcome != "completed":
            raise TargetError(f"{self._url.geturl()}: {answer.reason}")
        self._typical = answer.times[LATENCY][0]
        return self.measure

    def measure(self, sampling: Sampling) -> Samples:  # noqa: ARG002  a round has requests enough
        """Send the requests of one round; return their times, rates, and the number of each outcome.

        Raises:
            TargetError: The endpoint works no more.
        """
        begun = perf_counter()
        if self._load.rate:
            answers = self._open(self._load.rate)
        else:
            workers = max(1, self._load.concurrency)
            with ThreadPoolExecutor(workers) as pool:
                lists = pool.map(lambda _: [self._send() for _ in range(EACH)], range(workers))
                answers = [answer for answers in lists for answer in answers]
        self._failed = 0 if any(answer.outcome == "completed" for answer in answers) else self._failed + 1
        if self._failed == FAILED_ROUNDS:
            raise TargetError(f"{self._url.geturl()}: {answers[-1].reason}")
        return self._samples(answers, perf_counter() - begun)

    def _open(self, rate: float) -> list[Answer]:
        """Send requests at random times, whether earlier ones are answered or not."""
        due, pending = perf_counter(), []
        with ThreadPoolExecutor(MOST_IN_FLIGHT) as pool:
            for _ in range(max(OPEN_REQUESTS, round(EACH * rate * self._typical))):
                due += self._arrivals.expovariate(rate)
                sleep(max(0.0, due - perf_counter()))
                pending.append(pool.submit(self._send, due))
            return [one.result() for one in pending]

    def _samples(self, answers: Sequence[Answer], seconds: float) -> Samples:
        completed = [answer for answer in answers if answer.outcome == "completed"]
        samples: Samples = {LATENCY: [], TTFT: [], TPOT: [], ITL: []}
        for answer in completed:
            for measure, values in answer.times.items():
                samples[measure] += values
        good = sum(
            all(max(answer.times.get(name) or [0.0]) <= limit for name, limit in self._requests.limits.items())
            for answer in completed
        )
        counts = (sum(answer.tokens for answer in completed), len(completed), good)
        samples |= {rate: [number / seconds] for rate, number in zip((TOKENS, *RATES), counts, strict=True)}
        return samples | {name: [float(sum(one.outcome == name for one in answers))] for name in OUTCOMES}

    def _send(self, due: float | None = None) -> Answer:
        """Send one request, and read its answer; without the time at which it is *due*, the connection is made before."""
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=self._requests.timeout)
        times: list[float] = []
        try:
            connection.connect()
            due = due or perf_counter()
            headers = {"Content-Type": "application/json", **self._requests.headers}
            connection.request("POST", self._path, self._body(), headers)
            return self._read(connection.getresponse(), due, times)
        except TimeoutError:
            return Answer("timeout", reason=f"no complete answer within {self._requests.timeout:g} s")
        except (OSError, HTTPException, ValueError, AttributeError, TypeError) as error:
            outcome = "cut" if times or isinstance(error, IncompleteRead) else "error"
            return Answer(outcome, reason=f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    def _read(self, response: HTTPResponse, due: float, times: list[float]) -> Answer:
        """Read an answer; *times* receives the time of each part of its text.

        Raises:
            TimeoutError: It lasts too long.
        """
        if response.status != 200:
            return Answer("error", reason=f"HTTP {response.status}: {_first_line(response.read(500))}")
        finished, stated = False, 0
        for event in _events(response):
            if perf_counter() - due > self._requests.timeout:
                raise TimeoutError
            if "error" in event:
                return Answer("error", reason=_first_line(json.dumps(event["error"]).encode()))
            stated = (event.get("usage") or {}).get("completion_tokens") or stated
            choice = (event.get("choices") or [{}])[0]
            if (choice.get("delta") or {}).get("content") or choice.get("text"):
                times.append(perf_counter())
            finished = finished or bool(choice.get("finish_reason"))
        if not finished:
            return Answer("cut", reason="the stream ended without finish_reason")
        return _completed(due, times, stated) if times else Answer("error", reason="the answer has no text")

    def _body(self) -> bytes:
        prompt = self._requests.prompts[next(self._numbers) % len(self._requests.prompts)]
        fields = {"model": self._requests.model, "max_tokens": self._requests.tokens, "temperature": 0, "stream": True}
        fields["stream_options"] = {"include_usage": True}
        if self._path.endswith("/chat/completions"):
            return json.dumps({**fields, "messages": [{"role": "user", "content": prompt}]}).encode()
        return json.dumps({**fields, "prompt": prompt}).encode()


def _completed(due: float, times: Sequence[float], stated: int) -> Answer:
    """Return a complete answer; without a *stated* number of tokens, each part is one."""
    tokens = max(stated, len(times))
    gaps = [after - one for one, after in pairwise(times)]
    measured = {LATENCY: [times[-1] - due], TTFT: [times[0] - due], ITL: gaps}
    if tokens > 1:
        measured[TPOT] = [(times[-1] - times[0]) / (tokens - 1)]
    return Answer("completed", measured, tokens)


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
