"""From the torch DataLoader that is there to a fastload one: ``fastload.migrate(loader)``. See docs/diagnose.md."""
