"""Runs pixel operations on decoded batches, on the device: colors, warps, normalization, layout.

``batch`` finishes a batch; ``color`` and ``warp`` have the kernels; ``kernels`` pairs each operation
of ``fastload._plan`` with its kernel.
"""
