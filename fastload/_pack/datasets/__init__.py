"""Operations on packed datasets: append, merge, filter, export, reindex, diff."""
