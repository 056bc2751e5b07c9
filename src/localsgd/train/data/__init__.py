"""What is trained: tasks, models, and which samples a worker takes at which step."""
