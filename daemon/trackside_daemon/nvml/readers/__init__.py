"""Read one subject of a GPU per file.

In: the pynvml module, a device handle and the list of unsupported calls. Out: values by family name, in base units.
A call that a GPU does not support costs only its own values.
"""
