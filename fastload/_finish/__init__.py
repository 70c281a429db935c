"""Runs pixel operations on decoded batches: colors, warps, normalization, layout.

``batch`` finishes a batch, ``color`` and ``warp`` contain the kernels, and ``kernels`` maps each
operation of ``fastload._plan`` to its kernel.
"""
