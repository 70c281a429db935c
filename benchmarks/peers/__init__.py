"""Compares fastload with other loaders, each set up as its documentation recommends."""
