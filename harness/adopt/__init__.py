"""``--adopt``: runs test cases written on ``torch.testing._internal`` on everyrank's ranks, without an edit.

Nothing else in everyrank uses torch's private test classes.
"""
