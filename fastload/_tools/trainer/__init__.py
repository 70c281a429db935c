"""Checks of the training step itself: ``fastload.check_trainer``. See docs/diagnose.md."""
