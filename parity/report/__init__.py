"""What a call has found, as a report, as a text, and as plain data for run files."""
