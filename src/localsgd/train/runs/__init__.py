"""Carries runs out, from the command line and from Python."""
