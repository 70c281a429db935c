"""Photo-like JPEGs from a seed, for `fastload demo` and `fastload selftest`. More layouts are in `tools/makedata`.

Same seed, numpy and Pillow: same bytes. Image i depends on the seed and i only.
"""
