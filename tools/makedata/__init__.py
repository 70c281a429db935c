"""Generates datasets in five common layouts from a seed, without downloads.

See ``python -m tools.makedata --help``. The same seed and versions of NumPy and Pillow give the
same bytes. Sample i depends only on the seed and i, so a small dataset is the start of a large one,
and the number of processes does not matter.
"""
