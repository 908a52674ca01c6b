"""The contract ``rpc-optimizer``: parameters owned by other workers."""
