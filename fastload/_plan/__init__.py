"""Transforms as data: what happens to each sample, as integers, a matrix and parameters. Pure NumPy.

``transform`` what a transform and a pixel operation are; ``arguments`` checks their arguments
``crops``, ``resizes``, ``warps``, ``color``, ``format`` the transforms; random crops are drawn here
``compiler`` checks a list of transforms and makes a ``field_plan`` of it
``field_plan`` makes the ``rows`` of a batch: ``rng`` draws, ``geometry`` folds crops and resizes
``labels`` moves boxes, points and matrices along with their image, by field kind
``draw`` shows a row
"""
