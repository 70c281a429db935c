"""One module a peer; see ../job.py for what each has."""
