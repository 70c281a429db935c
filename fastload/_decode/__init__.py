"""From encoded bytes to pixels: header and limits first, then a backend."""
