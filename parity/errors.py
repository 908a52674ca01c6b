"""The exception of a call that can compare nothing."""


class Unusable(ValueError):
    """What parity was given cannot be compared; the message says what to write instead."""

    __module__ = "everyrank.parity"  # where users import it from: a failure begins with this name
