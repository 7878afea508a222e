"""Requests to the REST API of an MLflow server: https://mlflow.org/docs/latest/rest-api.html."""

import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from trackside_daemon.http_client import http_request
from trackside_daemon.http_client.errors import SendError

ANSWER_BYTES = 16 * 1024 * 1024
PAGES = 100_000  # most pages of one list


class RestClient:
    """The API of one server.

    Args:
        url: Its address, perhaps with user and password.
        headers: Further headers, such as that of a token.
        context: Trusted certificates.
    """

    def __init__(self, url: str, headers: Mapping[str, str], context: ssl.SSLContext | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = headers
        self._context = context or ssl.create_default_context()

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return the answer to a query.

        Raises:
            SendError: The server does not give it.
        """
        return self._request("GET", f"{path}?{urlencode(query)}", None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send JSON, and return the answer.

        Raises:
            SendError: The server did not accept it.
        """
        return self._request("POST", path, json.dumps(body).encode())

    def put(self, path: str, content: bytes) -> None:
        """Store an artifact, if the server keeps artifacts itself.

        Raises:
            SendError: The server did not accept it.
        """
        url = f"{self.url}/api/2.0/mlflow-artifacts/artifacts/{quote(path)}"
        headers = {"Content-Type": "application/octet-stream", **self._headers}
        http_request.request("PUT", url, content, headers, self._context)

    def pages(self, path: str, name: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the elements of a list that the server sends in pages, as answers to JSON.

        Raises:
            SendError: The server does not give it, or repeats a page.
        """
        return self._paged(name, lambda token: self.post(path, {**body, **token}))

    def get_pages(self, path: str, name: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the elements of a list that the server sends in pages, as answers to a query; see `pages`."""
        return self._paged(name, lambda token: self.get(path, **query, **token))

    def _paged(self, name: str, request: Callable[[dict[str, str]], dict[str, Any]]) -> Iterator[dict[str, Any]]:
        token = ""
        for _ in range(PAGES):
            answer = request({"page_token": token} if token else {})
            yield from answer.get(name) or ()
            before, token = token, str(answer.get("next_page_token") or "")
            if not token:
                return
            if token == before:
                break
        raise SendError(f"{http_request.without_secrets(self.url)}: it sends the same page again and again", "later")

    def _request(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        url = f"{self.url}/api/2.0/mlflow/{path}"
        answer = http_request.request(method, url, body, self._headers, self._context, longest=ANSWER_BYTES)
        try:
            value = json.loads(answer) if answer.strip() else {}
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise SendError(f"{http_request.without_secrets(self.url)}: this is no MLflow server", "later")
        return value


def authorization(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the header of the token, or of user and password, in MLflow's own variables."""
    if token := environ.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    user, password = environ.get("MLFLOW_TRACKING_USERNAME"), environ.get("MLFLOW_TRACKING_PASSWORD")
    return {"Authorization": http_request.basic_header(user, password)} if user and password else {}
