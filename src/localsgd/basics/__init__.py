"""Helpers for all packages: seeds, units, safe reading of files, strict JSON."""
