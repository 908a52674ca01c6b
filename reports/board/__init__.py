"""``everyrank board``: implementations side by side."""
