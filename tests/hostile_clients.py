"""Clients of the push socket that mean harm: each is a program for a process of its own.

Their arguments are the path of the Unix socket, then what each program names. Each prints a line when it is done, and keeps
its connections until its input ends.
"""

from __future__ import annotations

LIMITED = ("prlimit", "--nofile=1024:1024", f"--data={512 << 20}")
"""Launcher of the daemon that they attack: 1,024 descriptors and 512 MiB."""

_START = r"""
import os, random, socket, sys, time

def connect():
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(5)
    made.connect(sys.argv[1])
    return made

def greeted():
    made = connect()
    made.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    body = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
    made.sendall(b"\x04" + bytes([len(body)]) + body)
    return made

def done(text):
    print(text, flush=True)
    sys.stdin.read()
"""

MANY_CONNECTIONS = (
    _START
    + r"""
held, refused = [], 0
for _ in range(int(sys.argv[2])):
    try:
        held.append(connect())
        held[-1].sendall(b"\xff" + bytes(8) + b"\x7f")
    except OSError:
        refused += 1
done(f"{len(held)} connections, {refused} refused")
"""
)
"""Opens ARGUMENT connections, and sends the first ten bytes of a handshake on each."""

ENDLESS_MESSAGE = (
    _START
    + r"""
size, number = int(sys.argv[2]), int(sys.argv[3])
frame = (b"\x01" + bytes([size]) if size < 256 else b"\x03" + size.to_bytes(8, "big")) + bytes(size)
at_once = max(1, (1 << 20) // len(frame))
peer, sent = greeted(), 0
try:
    while sent < number:
        peer.sendall(frame * min(at_once, number - sent))
        sent += at_once
except OSError:
    pass
done(f"{min(sent, number)} of {number} frames")
"""
)
"""Sends a message of NUMBER frames of SIZE bytes, of which each announces another."""

RANDOM_FRAMES = (
    _START
    + r"""
until, sent, generator = time.monotonic() + float(sys.argv[2]), 0, random.Random(int(sys.argv[3]))
kinds = ["hello", "batch", "bye", "skip", "beat", "stacks", "ack", "?"]
while time.monotonic() < until:
    try:
        peer = greeted() if generator.random() < 0.9 else connect()
        for _ in range(generator.randrange(1, 200)):
            frames = [generator.randbytes(generator.choice([0, 1, 16, 30, 300, 3000])) for _ in range(generator.randrange(1, 6))]
            if generator.random() < 0.5:
                frames[0] = b"trackside/1"
            data = b""
            for index, body in enumerate(frames):
                more = index < len(frames) - 1
                short = len(body) < 256
                length = bytes([len(body)]) if short else len(body).to_bytes(8, "big")
                data += bytes([more | (0 if short else 2)]) + length + body
            peer.sendall(data if generator.random() < 0.99 else generator.randbytes(500))
            sent += 1
        peer.close()
    except OSError:
        pass
done(f"{sent} messages")
"""
)
"""Sends messages of random frames for SECONDS, on ever new connections, from a SEED."""
