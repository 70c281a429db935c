"""Decode backends: from encoded images and plan rows to a batch of pixels."""
