"""What the training's own numbers mean: families, runs, ranks and their states."""
