"""Comparisons of tensors, and the reference run in one process."""

from everyrank.suites.compare.comparison import CLOSE_FP64 as CLOSE_FP64
from everyrank.suites.compare.comparison import EXACT as EXACT
from everyrank.suites.compare.comparison import Comparison as Comparison
from everyrank.suites.compare.comparison import Difference as Difference
from everyrank.suites.compare.comparison import Tolerance as Tolerance
from everyrank.suites.compare.comparison import Values as Values
from everyrank.suites.compare.comparison import check as check
from everyrank.suites.compare.comparison import note as note
from everyrank.suites.compare.comparison import same as same
