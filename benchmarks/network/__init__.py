"""A network to measure on: nodes as network namespaces on one machine, behind links of any rate."""
