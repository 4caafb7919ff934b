"""Pauses of the garbage collector in processes that others wait for."""

import gc

YOUNG = 50_000
"""New objects, less those that are gone, after which the collector looks at them (Python: 700)."""


def spare_what_is_there() -> None:
    """Collect once, leave what is there to itself from now on (modules, configs, tokenizers), and collect less often.

    A full collection visits every object, and nothing else happens meanwhile: 0.2 to 0.3 s for the half million objects
    of verifiers and transformers, again and again under load. Nearly everything is freed by its reference count: an
    episode leaves about a hundred small objects to the collector, a call of the gateway none.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
