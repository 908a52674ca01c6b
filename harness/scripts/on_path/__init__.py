"""The folder that is on the path of what a test starts. It holds nothing else, so that it hides nothing."""
