"""Sources for ``fastload pack``, one module per format, listed in registry.py.

See docs/sources.md.
"""
