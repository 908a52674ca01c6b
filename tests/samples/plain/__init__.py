"""The plainest correct implementations of contracts, written from the documents alone."""
