"""What people see first: machine, GPUs, runs and alerts of now in one answer, and the stream that repeats it."""
