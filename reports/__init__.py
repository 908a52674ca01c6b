"""What a run says: the run file, and what is made of it."""
