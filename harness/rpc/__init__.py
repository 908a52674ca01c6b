"""RPC agents of one test, and one that stays up from test to test."""
