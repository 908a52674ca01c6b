"""What the arenas of all contracts share: errors of a subject, workers, the law surface."""
