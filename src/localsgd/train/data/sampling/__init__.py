"""The samples of each worker at each step, independent of the number of processes."""
