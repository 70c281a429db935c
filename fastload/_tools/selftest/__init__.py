"""`fastload selftest`: do the GPU backends give right pixels on this machine? Each stage in a process of its own.

``record`` is what the loader asks; ``run`` starts the stages, ``child`` runs one, ``stages`` and the modules beside it are what they do.
"""
