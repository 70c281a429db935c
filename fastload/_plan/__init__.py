"""Transforms as data: crop, size, flip, matrix and parameters of each sample. NumPy only, no torch.

========================================  ==========================================================
``transform``, ``arguments``              base classes of transforms and pixel operations; checks
``crops``, ``resizes``, ``warps``,        the transforms; ``crops`` draws random crops
``color``, ``format``
``compiler``                              checks and compiles a list of transforms
``field_plan``, ``rows``                  compute and hold the plan rows of a batch
``rng``, ``geometry``                     random numbers; combination of crops and resizes
``labels``                                moves boxes, points and matrices with their image
``draw``                                  draws a plan row
========================================  ==========================================================
"""
