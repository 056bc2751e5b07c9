"""Benchmarks of speed and memory against the obvious way to do the same, side by side."""
