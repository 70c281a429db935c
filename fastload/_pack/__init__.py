"""Packs a source of samples into a dataset on disk."""
