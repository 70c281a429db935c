"""The dataset on disk: records, shards, manifest, columns. The format is written down in docs/FORMAT.md."""
