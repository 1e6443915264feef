"""The strategies: what they shrink to."""

import subprocess
import sys

import hypothesis as hp
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import eqx_pipe.testing as ept

VECTOR = jax.ShapeDtypeStruct((4,), jnp.float32)
RECORD = {"a": VECTOR, "b": (jax.ShapeDtypeStruct((2, 3), jnp.int32),)}


def simplest(strategy, condition=lambda value: True, examples=300):
    """Return the value that hypothesis shrinks a strategy to."""
    settings = hp.settings(
        max_examples=examples, database=None, derandomize=True, deadline=None
    )
    return hp.find(strategy, condition, settings=settings)


def are_zeros(tree):
    return all(not np.asarray(leaf).any() for leaf in jtu.tree_leaves(tree))


def test_arrays_shrink_to_zeros():
    assert are_zeros(simplest(ept.arrays(RECORD)))


def test_an_array_shrinks_to_the_one_number_that_matters():
    found = simplest(ept.arrays(VECTOR), lambda x: bool((x > 1).any()))
    assert np.sort(np.asarray(found)).tolist() == [0, 0, 0, 1.125]


def test_keys_shrink_to_the_first():
    found = simplest(ept.from_jaxtyping(PRNGKeyArray))
    assert are_zeros(jr.key_data(found))


def test_values_of_annotations_shrink_to_size_one():
    assert simplest(ept.from_jaxtyping(Float[Array, "n m"])).shape == (1, 1)
    assert are_zeros(simplest(ept.from_jaxtyping(PyTree[Float[Array, " n"]])))
    assert simplest(ept.from_jaxtyping(Float[Array, " n"] | None)) is None


# Hypothesis is optional.


def in_python(code):
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_laws_work_without_hypothesis_and_strategies_say_what_to_install():
    code = """
import sys
sys.modules["hypothesis"] = None
import eqx_pipe.testing as ept, jax.numpy as jnp
ept.check_function(jnp.sin, jnp.ones(2))
try:
    ept.arguments
except ImportError as error:
    print("testing.arguments" in str(error), "eqx_pipe[testing]" in str(error))
"""
    assert in_python(code) == ["True", "True"]
