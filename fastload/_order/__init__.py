"""Computes the sample ids of a rank in order, from seed, epoch, rank and world size."""
