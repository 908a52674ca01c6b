"""What a call begins with: what it is given, its ranks, its models, and what each rank holds of the plain one."""
