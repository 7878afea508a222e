"""Read and write the event files of TensorBoard.

In: directories with event files; samples. Out: the contents of runs; event files.
"""
