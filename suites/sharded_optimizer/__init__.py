"""The contract ``sharded-optimizer``: parameters cut over ranks."""
