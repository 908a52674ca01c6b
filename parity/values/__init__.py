"""What a tensor is part of: names, positions, and the values of the plain model's run."""
