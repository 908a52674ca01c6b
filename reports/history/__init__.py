"""Many runs: which night a case changed."""
