"""Test files as others write them; run by tests here, each in a project of its own."""
