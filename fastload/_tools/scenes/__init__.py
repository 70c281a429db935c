"""Generates photo-like JPEGs from a seed, for `fastload demo` and `fastload selftest`.

The same seed gives the same bytes with the same versions of NumPy and Pillow. Image i depends only
on the seed and i. `tools/makedata` has more dataset layouts.
"""
