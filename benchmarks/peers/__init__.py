"""fastload beside other loaders: same images, same work, each as its own docs recommend. `python -m benchmarks.peers --help`."""
