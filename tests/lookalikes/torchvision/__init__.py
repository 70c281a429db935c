"""Replaces torchvision, which is not installed in tests: same names and attributes, few pixels."""
