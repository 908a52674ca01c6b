"""Generated sequences: beside its table of cases, a contract draws models and sequences of actions.

A grammar, in ``suites/<contract>/grammar.py``, says what a draw of its contract is made of, and carries one out on a
subject and on the reference. What all contracts share lives here: drawing with Hypothesis, shrinking, replaying and
counting. A printed test calls ``everyrank.suites.generate.replay.replay``.
"""
