"""How people are told of alerts: each way is a folder with its settings and its sink."""
