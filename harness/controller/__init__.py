"""Runs in the pytest process: starts worlds, watches one test at a time, decides when to stop waiting."""
