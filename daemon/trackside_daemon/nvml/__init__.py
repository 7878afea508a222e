"""The worker process that alone imports pynvml, and its parent-side handle."""
