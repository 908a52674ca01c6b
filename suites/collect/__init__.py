"""From a call of `conformance` to pytest items: which cases there are, which are left out, what became of each."""
