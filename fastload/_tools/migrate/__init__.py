"""Converts a torch DataLoader to a fastload one: ``fastload.migrate(loader)``."""
