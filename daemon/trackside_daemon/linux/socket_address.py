"""The address of a socket as text."""

from __future__ import annotations

import socket


def format_address(listener: socket.socket) -> str:
    """Return the address of a TCP socket as ``HOST:PORT``, an IPv6 host in brackets."""
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{host}:{port}"
