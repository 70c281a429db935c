"""Checks of a training step (``fastload.check_trainer``)."""
