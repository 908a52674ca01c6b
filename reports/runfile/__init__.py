"""The run file: its model and schema, written and read."""
