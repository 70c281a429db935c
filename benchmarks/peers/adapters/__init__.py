"""One module per peer; job.Peer describes its contents."""
