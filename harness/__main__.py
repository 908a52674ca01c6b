"""``python -m everyrank``."""

from __future__ import annotations

import sys

from everyrank.cli import main

sys.exit(main())
