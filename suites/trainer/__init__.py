"""The contract ``trainer``: see ``contract.py``."""
