"""Generated sequences: in addition to its table of cases, a contract draws models and sequences of actions.

A grammar, in ``suites/<contract>/grammar.py``, defines the parts of a draw of its contract, and carries a draw out on
a subject and on the reference. This folder has the parts that all contracts share: drawing with Hypothesis,
shrinking, replaying and counting. A printed test calls ``everyrank.suites.generate.replay.replay``.
"""
