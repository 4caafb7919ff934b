"""Conformance kit of algorithms: builders of episodes, and checks that every algorithm passes.

Imports `orchestrator.train`. Start with `conformance.py`.

from braidrl.testing import CHECKS

@pytest.mark.parametrize("check", CHECKS)
def test_conformance(check):
    check(lambda: MyAlgorithm(MyConfig()))
"""

from braidrl.testing.conformance import CHECKS, check_algorithm
from braidrl.testing.episodes import episode, node, trace

__all__ = ["CHECKS", "check_algorithm", "episode", "node", "trace"]
