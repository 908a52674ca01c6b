"""What a tensor that deviates looks like: a closed list of patterns, for contracts and for parity.

Nothing is named where nothing fits. A contract's case sees a tensor as one rank has it (``OneRank``), and parity
what all ranks hold of it (``AllRanks``): a pattern has a test for either, or for both.
"""
