"""The process that reads checkpoints: ``python -m trackside_daemon.checkpoints.audit``.

The daemon limits its memory. It uses processors and disks only when nothing else does.
"""

import sys

from trackside_daemon.checkpoints.audit.audit import audit
from trackside_daemon.checkpoints.audit.files import scan
from trackside_daemon.checkpoints.audit.request import AuditRequest, ScanRequest
from trackside_daemon.linux.worker_call import WorkLimits, serve

CPU_SECONDS = 30  # of a processor for a request, and one more for each `CPU_BYTES` of a checkpoint
CPU_BYTES = 100_000_000


def main() -> int:
    """Answer requests until the end of the input."""
    return serve(
        AuditRequest | ScanRequest,
        lambda request: audit(request) if isinstance(request, AuditRequest) else scan(request),
        lambda request: WorkLimits(CPU_SECONDS + getattr(request, "bytes", 0) // CPU_BYTES),
    )


if __name__ == "__main__":
    sys.exit(main())
