"""What a test declares: the mark, the rank fixtures, which items are multi-rank, what they need."""
