"""Conformance kit for algorithms: checks that every algorithm must pass, and builders of episodes.

Imports `orchestrator.train`. Start with `conformance.py`. Usage:

from braidrl.testing import CHECKS

@pytest.mark.parametrize("check", CHECKS)
def test_conformance(check):
    check(lambda: MyAlgorithm(MyConfig()))
"""

from braidrl.testing.conformance import CHECKS, check_algorithm
from braidrl.testing.episodes import episode, node, trace

__all__ = ["CHECKS", "check_algorithm", "episode", "node", "trace"]
