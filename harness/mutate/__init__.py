"""See the collectives of a test at its process groups, and change one of them: on a rank."""
