"""``python -m everyrank``."""

from __future__ import annotations

import sys

from everyrank.command import main

sys.exit(main())
