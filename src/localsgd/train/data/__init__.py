"""Tasks, models, and the samples that a worker takes at each step."""
