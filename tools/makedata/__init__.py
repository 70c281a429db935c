"""Seeded makers of datasets in the layouts the five teams have (python -m tools.makedata --help); nothing is downloaded.

Same seed, numpy and Pillow: same bytes. Sample i depends on the seed and i only, so a small dataset is the
beginning of a large one, and the number of processes changes nothing.
"""
