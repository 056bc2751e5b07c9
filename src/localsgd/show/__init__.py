"""What people see: the run before it starts, while it runs, and what came out."""
