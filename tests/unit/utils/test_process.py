"""Garbage collection in processes where pauses are costly."""

import subprocess
import sys

LOOK = """
import gc, weakref
from braidrl.utils.process import YOUNG, freeze_gc

class Ring:
    def __init__(self):
        self.me = self

before = len(gc.get_objects())
gone = weakref.ref(Ring())
freeze_gc()
assert gone() is None
assert len(gc.get_objects()) < before / 100 and gc.get_freeze_count() > 0.9 * before
assert gc.get_threshold()[0] == YOUNG

later = weakref.ref(Ring())
kept = [[] for _ in range(YOUNG + 1)]
assert later() is None, "new garbage is collected automatically"
"""


def test_what_is_there_is_spared_and_new_garbage_is_not() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
