"""The page: run files as one self-contained HTML file."""
