"""Callbacks for training frameworks. Import the module of your framework.

- ``fastload.callbacks.lightning``: ``StepProbeCallback``
- ``fastload.callbacks.huggingface``: ``StepProbeCallback``
- ``fastload.callbacks.mmengine``: ``StepProbeHook``, and a dataset, a sampler, a batch sampler and
  a collate function in the registries of MMEngine

A step lasts from one request for a batch to the next, as with ``fastload.StepProbe``. It includes
the logging, checkpoints and evaluations that follow the batch. Checkpoints and evaluations also
have rows of their own.
"""
