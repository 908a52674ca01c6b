"""A hunt for wrong verdicts: random processes of runs are killed, and what the runs report is judged.

On 2026-11-25, seed 3: 235 kills under fork, 302 under torchrun with its agent, 68 under Ray and 50 under spawn, in
1,682 verdicts. The five faults that it found are mended, each with a test. On 2026-11-26, seed 7, at most 24 kills in
a run: 313 under fork, 304 under torchrun with its agent and 304 under spawn without a finding, and, after the two
causes of three findings under Ray were mended, seed 9: 303 kills under Ray in 464 verdicts without a finding.
"""
