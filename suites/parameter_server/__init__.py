"""The contract ``parameter-server``: batched updates."""
