"""Flat memory: a model as one row, its tensors as views of it."""
