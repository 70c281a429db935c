"""Checks a training step (``fastload.check_trainer``)."""
