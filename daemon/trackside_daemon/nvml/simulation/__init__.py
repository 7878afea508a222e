"""GPUs that do not exist: what boards they are, how they are used, what ails them, and what NVML would say of that."""
