"""fastload inside trainers that own the loop; each framework is imported by its own name.

- ``fastload.callbacks.lightning``: ``StepProbeCallback``
- ``fastload.callbacks.huggingface``: ``StepProbeCallback``
- ``fastload.callbacks.mmengine``: ``StepProbeHook``, and dataset, samplers and collate function in MMEngine's registries

A step lasts from one request for a batch to the next, as in a loop of one's own. Logging, checkpoints and evaluations are therefore
part of the step they follow, and have rows of their own that name them.
"""
