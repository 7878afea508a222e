"""Manage the NVML worker from the daemon's side.

In: the sampler's requests. Out: readings within a deadline, with counters that continue across workers.
A worker that hangs is killed and replaced with back-off; the GPU it hung on is quarantined.
"""
