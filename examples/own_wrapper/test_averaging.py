"""Is training by the wrapper what training in one process would have been? The laws of `trainer` ask.

pytest -n auto --profile=quick    # each law and each optimizer once: half a minute
pytest -n auto                    # what a change should pass
"""

from averaging import Averaged
from everyrank.suites import Subject, conformance


@conformance(Subject("averaging.Averaged", contract="trainer", build=Averaged, lacks=["closures", "groups", "owns"]))
def test_averaged(case):
    case.run()
