"""`fastload bench`: measures decoding, loading and reading a packed dataset on this machine."""
