"""The training engine: hosted workers, evaluation, checkpoints, records."""
