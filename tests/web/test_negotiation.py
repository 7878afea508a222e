"""The format of the metrics page by the Accept header."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside_daemon.web.http.negotiation import OPENMETRICS, TEXT, accepts_gzip, negotiate_format

UNDERSCORES, UTF_8 = "underscores", "allow-utf-8"

PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
PROMETHEUS_3_PROTO = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6," + PROMETHEUS_3
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
OM = "application/openmetrics-text"


@pytest.mark.parametrize(
    ("accept", "kind", "escaping"),
    [
        (PROMETHEUS_2_42, OPENMETRICS, UNDERSCORES),
        (PROMETHEUS_3, OPENMETRICS, UTF_8),
        (PROMETHEUS_3_PROTO.replace("q=0.6", "q=0.1"), OPENMETRICS, UTF_8),
        (BROWSER, TEXT, UNDERSCORES),
        ("", TEXT, UNDERSCORES),
        ("*/*", TEXT, UNDERSCORES),
        ("text/*", TEXT, UNDERSCORES),
        ("text/plain", TEXT, UNDERSCORES),
        ("text/plain;version=0.0.4", TEXT, UNDERSCORES),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", TEXT, UTF_8),
        (OM, OPENMETRICS, UNDERSCORES),
        (f"{OM};version=1.0.0", OPENMETRICS, UNDERSCORES),
        (f'{OM}; version="1.0.0"', OPENMETRICS, UNDERSCORES),
        (f'{OM};version=1.0.0;escaping="allow-utf-8"', OPENMETRICS, UTF_8),
        (f"{OM};version=1.0.0;escaping=dots", OPENMETRICS, UNDERSCORES),
        (f"{OM.upper()}; Version=1.0.0 ; Q=0.5", OPENMETRICS, UNDERSCORES),
        (f"  {OM}  ;  version=1.0.0  ", OPENMETRICS, UNDERSCORES),
        (f"{OM};version=0.0.1", TEXT, UNDERSCORES),
        (f"{OM};version=2.0.0", TEXT, UNDERSCORES),
        (f"{OM};version=99.9", TEXT, UNDERSCORES),
        (f"{OM};version=1.x", TEXT, UNDERSCORES),
        (f"{OM};q=0.5,text/plain;q=0.9", TEXT, UNDERSCORES),
        (f"{OM};q=0.9,text/plain;q=0.5", OPENMETRICS, UNDERSCORES),
        (f"text/plain,{OM}", OPENMETRICS, UNDERSCORES),
        (f"text/plain;q=0.9,{OM};version=1.0.0;q=0.1", TEXT, UNDERSCORES),
        (f"{OM};q=0", TEXT, UNDERSCORES),
        (f"{OM};q=0,*/*;q=0.1", TEXT, UNDERSCORES),
        (f"{OM};q=0.0000,text/plain;q=0", TEXT, UNDERSCORES),
        (f'{OM};q="0.8",text/plain;q=0.5', OPENMETRICS, UNDERSCORES),
        (f"{OM};q=7,text/plain", OPENMETRICS, UNDERSCORES),
        (f"{OM};q=-1,text/plain;q=0.1", TEXT, UNDERSCORES),
        (f"{OM};q=nan", TEXT, UNDERSCORES),
        (f"{OM};q=x", TEXT, UNDERSCORES),
        (f'{OM};note="a,b;q=0";q=1', OPENMETRICS, UNDERSCORES),
        ("application/json", TEXT, UNDERSCORES),
    ],
)
def test_an_accept_header_is_answered_with(accept: str, kind: str, escaping: str) -> None:
    chosen = negotiate_format(accept)
    assert chosen.content_type == f"{kind}; escaping={escaping}"
    assert chosen.openmetrics is (kind == OPENMETRICS)


@pytest.mark.parametrize(
    "accept", [";", ",", ";;;", ",;,", '"', '";', "q=1", "=", "text/plain;q", "text/plain; q*=utf-8''1", "é"]
)
def test_garbage_gets_the_text(accept: str) -> None:
    assert negotiate_format(accept).openmetrics is False


@given(st.text(alphabet=st.sampled_from(',;="*/ qv.01')) | st.text())
def test_no_header_is_too_odd(header: str) -> None:
    assert negotiate_format(header).content_type.startswith((TEXT, OPENMETRICS))
    assert accepts_gzip(header) in {True, False}


def test_a_long_header_takes_no_long_time() -> None:
    for sign in (",", ";", '"', "a", "=", '",'):
        negotiate_format(sign * 60_000)


@pytest.mark.parametrize(
    ("accept_encoding", "gzip"),
    [
        ("gzip", True),
        ("GZIP", True),
        ("deflate, gzip;q=0.5, br", True),
        ("*", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("*;q=0", False),
        ("*;q=0, gzip", True),
        ("x-gzip-not", False),
    ],
)
def test_gzip_is_used_where_it_is_accepted(accept_encoding: str, gzip: bool) -> None:
    assert accepts_gzip(accept_encoding) is gzip


@pytest.mark.parametrize("accept", [PROMETHEUS_2_42, PROMETHEUS_3, BROWSER, "text/plain; q*=utf-8''1", ";"])
def test_the_page_is_in_the_format_of_its_content_type(client: Any, accept: str) -> None:
    response = client.get("/metrics", headers={"Accept": accept})
    assert response.status_code == 200
    assert response.headers["Content-Type"] == negotiate_format(accept).content_type
    assert response.text.endswith("# EOF\n") is negotiate_format(accept).openmetrics
    assert response.headers["Vary"] == "Accept, Accept-Encoding"


def test_a_page_is_the_same_with_gzip_and_without(client: Any) -> None:
    query = {"collect[]": "cpu"}
    packed = client.get("/metrics", params=query, headers={"Accept-Encoding": "gzip"})
    plain = client.get("/metrics", params=query, headers={"Accept-Encoding": "identity"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert packed.text == plain.text
