"""`fastload selftest`: checks that the GPU backends decode correctly on this machine.

``run`` starts each stage in its own process, ``child`` runs one stage, and ``stages`` and
``gpu_stages`` contain them. The loader reads the results from ``fastload._decode.selftest_record``.
"""
