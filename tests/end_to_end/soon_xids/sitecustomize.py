"""Simulated GPUs that have their Xid errors every five seconds, for Python with this directory on its path."""

import trackside_daemon.nvml.simulation.faults as times

times.XID_SECONDS = 5.0
