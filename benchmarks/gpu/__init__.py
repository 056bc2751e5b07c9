"""Many workers on one GPU: speed and accuracy, from torch, numpy and this repository alone."""
