"""The process that reads checkpoints: ``python -m trackside_daemon.checkpoints.audit``.

Each line of standard input is a request, and each line of standard output its answer. The daemon limits its memory. It
uses processors and disks only when nothing else does.
"""

from __future__ import annotations

import signal
import sys

import msgspec

from trackside_daemon.checkpoints.audit.audit import audit
from trackside_daemon.checkpoints.audit.request import AuditRequest, ScanRequest
from trackside_daemon.checkpoints.audit.scan import scan
from trackside_daemon.linux.parent_death import end_with_parent
from trackside_daemon.linux.process_limits import limit_this_process, limit_time
from trackside_daemon.linux.signals import reset_signals

CPU_SECONDS = 30  # of a processor for a request, and one more for each `CPU_BYTES` of a checkpoint
CPU_BYTES = 100_000_000


def main() -> int:
    """Answer requests until the end of the input."""
    reset_signals()
    end_with_parent(None, signal.SIGKILL)
    limit_this_process()
    decode = msgspec.json.Decoder(AuditRequest | ScanRequest).decode
    for line in sys.stdin.buffer:
        request = decode(line)
        limit_time(CPU_SECONDS + getattr(request, "bytes", 0) // CPU_BYTES)
        answer = audit(request) if isinstance(request, AuditRequest) else scan(request)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
