"""The configuration of a run, and what is derived from it: method, plan, learning rate."""
