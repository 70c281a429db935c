"""The last step, on the target device: colours, normalising, dtype and layout of whole batches, in torch."""

from fastload._finish.batch import Finish

__all__ = ["Finish"]
