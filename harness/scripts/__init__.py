"""Scripts that a test runs by ``torchrun`` in a subprocess, under ``--adopt``: their ranks are watched."""
