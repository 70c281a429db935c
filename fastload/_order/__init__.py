"""Which samples, in which order. Pure: seed, epoch, rank, world size → ids."""
