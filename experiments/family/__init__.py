"""Every method on the same real data and samples."""
