"""Speed and memory against the obvious way to do the same, measured side by side."""
