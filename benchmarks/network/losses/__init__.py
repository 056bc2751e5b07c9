"""Workers that are killed on a slow network: `python -m benchmarks.network.losses`."""
