"""A run as a value, and what follows from it: methods, plan, learning rate."""
