"""Read the data of other trackers, and mirror the history to them.

In: files and servers of TensorBoard, W&B, MLflow and others; committed samples of the history. Out: the contents of runs, for an
import or a session of the client; the same samples in a directory or at a server of another tool.
"""
