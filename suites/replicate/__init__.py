"""The contract ``replicate``: the same module on every rank."""
