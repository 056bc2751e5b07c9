"""Which samples a worker takes at which step, the same however workers are hosted."""
