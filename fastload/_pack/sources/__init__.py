"""Sources of samples for ``fastload pack``: one module and one line in registry.py each. See docs/sources.md."""
