"""A pytest plugin: one line for each test as it ends, so that a run which is cut leaves what it has seen.

`outcome<TAB>test<TAB>seconds<TAB>what the failure said`, to the file that $OUTCOMES names.
"""

import os
import tracemalloc

# The suite traces every allocation and asks for none of the traces; it takes a third of the time.
tracemalloc.start = lambda *_: None

WRITTEN = open(os.environ["OUTCOMES"], "w", buffering=1)
RUNNING = {}


def pytest_runtest_logreport(report):
    outcome, seconds, said = RUNNING.get(report.nodeid, ("passed", 0, ""))
    if report.failed:
        outcome, said = "failed", said + " " + str(report.longrepr)[-2000:]
    elif report.skipped and outcome == "passed":
        outcome, said = "skipped", str(report.longrepr)
    RUNNING[report.nodeid] = (outcome, seconds + report.duration, said)
    if report.when == "teardown":
        outcome, seconds, said = RUNNING.pop(report.nodeid)
        said = " ".join(said.split())
        WRITTEN.write(f"{outcome}\t{report.nodeid}\t{seconds:.1f}\t{said}\n")
