"""What finds trouble in what a training pushes: one file a detector, each O(1) a sample, and none reads a clock."""
