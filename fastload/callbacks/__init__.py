"""The step probe for trainers that own the loop: ``lightning``, ``huggingface``, ``mmengine``. Each is imported by its own name.

A step goes from the batch being asked for to the next one being asked for, as in a loop of one's own; so logging, checkpoints and
evaluations are in the time of the step they follow, and have rows of their own that name them.
"""
