"""The dataset on disk: records, shards, manifest, columns. docs/FORMAT.md defines the format."""
