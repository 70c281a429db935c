"""From a source of samples to a published dataset."""
