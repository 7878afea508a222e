"""What is read of a GPU: one file a subject. A reader takes pynvml, a device handle and what is refused there."""
