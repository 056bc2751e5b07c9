"""What carries a run out: hosted workers, evaluation, checkpoints, records."""
