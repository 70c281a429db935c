"""Live diagnosis of any loader: ``fastload.diagnose(loader, step)``. See docs/diagnose.md."""
