"""The engine of the kit: subjects, contracts, cases, ledgers, and how a case gets its outcome."""
