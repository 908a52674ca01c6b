"""One verdict from the fates of all ranks: the rules, pytest's reports, the result for plugins."""
