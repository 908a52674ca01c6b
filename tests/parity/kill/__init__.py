"""The kill matrix of parity: it is silent on each honest way to be parallel, and finds each rogue where it says."""
