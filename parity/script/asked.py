"""The variables by which the command asks the ranks of a script for a record."""

from __future__ import annotations

FOLDER, STEPS, OPTIONS = "EVERYRANK_RECORD", "EVERYRANK_RECORD_STEPS", "EVERYRANK_RECORD_OPTIONS"
#: Where multiprocessing puts its sockets, and by whose name it calls its semaphores.
SHARED = "EVERYRANK_RECORD_SHARED"

#: What is called in each rank when torch has been imported.
AFTER_TORCH, FUNCTION = "EVERYRANK_AFTER_TORCH", "everyrank.parity.script.record:start"
