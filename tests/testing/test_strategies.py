"""The strategies: what they shrink to and draw."""

import subprocess
import sys

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis.errors import NoSuchExample
from jaxtyping import Array, Float, PyTree

import eqx_pipe as ep
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


def stages_in(pipe):
    """All stages of a pipeline, itself included."""
    nodes = [pipe]
    if hasattr(pipe, "children"):
        for child in pipe.children().values():
            nodes += stages_in(child)
    return nodes


# Shrinking.


def test_arrays_shrink_to_zeros():
    assert are_zeros(simplest(ept.arrays(RECORD)))


def test_an_array_shrinks_to_the_one_number_that_matters():
    found = simplest(ept.arrays(VECTOR), lambda x: bool((x > 1).any()))
    assert np.sort(np.asarray(found)).tolist() == [0, 0, 0, 1.125]


def test_keys_shrink_to_the_first():
    assert are_zeros(jr.key_data(simplest(ept.keys())))


@pytest.mark.slow
def test_pipelines_shrink_to_one_stage():
    stage, x = simplest(ept.pipelines(VECTOR, max_depth=4)), object()
    assert stage(x) is x


def test_a_pipeline_shrinks_to_the_stage_that_matters():
    norm = eqx.nn.LayerNorm(4)
    pipelines = ept.pipelines(VECTOR, max_depth=3, stages=[st.just(norm)])
    assert (
        simplest(pipelines, lambda pipe: any(s is norm for s in stages_in(pipe)))
        is norm
    )


def test_values_of_annotations_shrink_to_size_one():
    assert simplest(ept.from_jaxtyping(Float[Array, "n m"])).shape == (1, 1)
    assert are_zeros(simplest(ept.from_jaxtyping(PyTree[Float[Array, " n"]])))
    assert simplest(ept.from_jaxtyping(Float[Array, " n"] | None)) is None


# What is drawn.


def test_pipelines_are_as_deep_as_asked_for_and_no_deeper():
    def depth(pipe):
        if not hasattr(pipe, "children"):
            return 0
        return 1 + max(map(depth, pipe.children().values()), default=0)

    # Some combinators stand in a chain with a function after them.
    assert depth(simplest(ept.pipelines(VECTOR, max_depth=3), lambda p: depth(p) > 2))
    with pytest.raises(NoSuchExample):
        simplest(ept.pipelines(VECTOR, max_depth=0), lambda p: depth(p) > 0, 30)


@hp.given(st.data())
def test_a_pipeline_accepts_and_keeps_the_struct_that_it_was_drawn_for(data):
    structs = [VECTOR, jax.ShapeDtypeStruct((2, 3), "bfloat16"), RECORD]
    struct = data.draw(st.sampled_from([*structs, jax.ShapeDtypeStruct((0,), "f4")]))
    pipe = ep.chain(data.draw(ept.pipelines(struct)))
    got = eqx.filter_eval_shape(lambda x, key: pipe(x, key=key), struct, jr.key(0))
    forms = [jax.tree.map(lambda v: (v.shape, v.dtype), tree) for tree in (got, struct)]
    assert forms[0] == forms[1]


@hp.given(ept.pipelines(VECTOR, random=False, branches=False))
def test_what_is_left_out_is_not_drawn(pipe):
    kinds = {type(stage).__name__ for stage in stages_in(pipe)}
    assert not kinds & {"Cond", "Switch", "Gated", "Dropout"}
    ep.chain(pipe)(jnp.ones(4))  # without a key


class Own(ep.Stage):
    """A user's stage."""

    factor: Float[Array, ""]

    def __call__(self, x, *, key=None):
        return jtu.tree_map(lambda v: v * self.factor.astype(v.dtype), x)


def has(kind):
    return lambda pipe: any(type(stage) is kind for stage in stages_in(pipe))


def test_stages_of_ones_own_are_drawn():
    own = st.just(Own(jnp.float32(2)))
    pipelines = ept.pipelines(VECTOR, max_depth=2, stages=[own])
    assert type(simplest(pipelines, has(Own))) is Own
    deep = simplest(pipelines, lambda p: type(p) is not Own and has(Own)(p))
    assert len(stages_in(deep)) <= 4


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
    ept.pipelines
except ImportError as error:
    print("testing.pipelines" in str(error), "eqx_pipe[testing]" in str(error))
"""
    assert in_python(code) == ["True", "True"]
