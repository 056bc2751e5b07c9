"""Who averages with whom, and how: levels, topology, fragments and delays, outer optimizers."""
