"""Ranks beyond this process's own children: keepers that another engine has started, reached over TCP."""
