"""Everything that the record takes from `benchmarks/` and `tests/`, in one place.

Helpers of the tests are imported by path, as the benchmarks do it, so a file that
moves is corrected here (and in the benchmark that imports it).
"""

import jax.random as jr

from benchmarks import _models, _sweep_cases, compose, compose_models, testing_planted
from benchmarks.compose_models import page_models

POINT_FUNCTIONS = {fn.__name__: fn for fn in _models.POINTS}
# `small` and `oscillator` sweep functions that are in `POINT_FUNCTIONS`; `brain`
# compiles mostly another package's code.
SWEEP_CASES = {name: _sweep_cases.CASES[name] for name in ("divergent", "noise")}


def benchmark_pipelines():
    """Return the pipelines of `benchmarks compose`, each with an input and a key."""
    one, many = (compose.WIDTH,), (compose.BATCH, compose.WIDTH)
    return {
        name: (
            pipe,
            jr.normal(jr.key(1), one if name == "cond_single" else many),
            jr.key(2) if name == "random" else None,
        )
        for name, pipe in compose.cases().items()
    }


def image_pipelines():
    """Return the elementwise pipelines that are compared with datarax."""
    return compose.in_ours()


def models():
    """Return the models of docs/models.md, each with its inputs."""
    made = page_models.definitions()
    return {
        name: lambda name=name: compose_models.built(name, made[name])
        for name in compose_models.MODELS
    }


def planted_bugs():
    """Yield the kind of each planted bug, and its row."""
    for kind, rows in testing_planted.catalogue().items():
        for row in rows:
            yield kind, row


def verdict(row):
    """Return the laws that report a planted bug, and those that report its twin."""
    return testing_planted.verdict(row)
