"""Which tensors part, in which order, and what happened to them."""
