"""The two runs that are compared: the plain model's in one process, and the user's on this rank."""
