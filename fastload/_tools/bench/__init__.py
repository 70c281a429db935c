"""What `fastload bench` measures with. Scripts that compare fastload with other loaders are in `benchmarks/`."""
