"""Every combinator, and every nesting of them, keeps every law of a stage.

The stages come from the strategies that users have; what they should compute, from
`by_hand.py`.
"""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import pytest
from support.by_hand import by_hand
from support.combinators import COMBINATORS, Parts
from support.helpers import assert_agree, few, numbers
from support.strategies import keys, nestings, structs

import eqx_pipe as ep
import eqx_pipe.testing as ept

X = numbers(jax.ShapeDtypeStruct((4,), jnp.float32))

# Draws take most of the compilation, so few of them draw.
QUICK = [
    *[
        "chain broadcast",
        "parallel module",
        "weighted by a gate",
        "residual",
        "at a path",
    ],
    *[
        "graph",
        "repeat broadcast",
        "batched with a name",
        "tied",
        "gated sum",
        "gated dict",
    ],
    *["noisy cond", "switch"],
]
CASTS = [name for name in COMBINATORS if "precision" in name]
OTHERS = [name for name in COMBINATORS if name not in QUICK + CASTS]


# One pipeline, which shares the programs. An error names the stage in it.
@pytest.mark.parametrize(
    "names",
    [
        QUICK,
        *(pytest.param(names, marks=pytest.mark.slow) for names in (OTHERS, CASTS)),
    ],
    ids=len,
)
def test_each_combinator_keeps_every_law(names):
    stages = {name: COMBINATORS[name](Parts(4)) for name in names}
    # The output of `precision` is float32 by default, whatever the input is.
    skip = ("dtype",) if names is CASTS else ()
    ept.check_function(ep.parallel(stages, merge="dict"), X, key=jr.key(0), skip=skip)


@few
@hp.given(st.data())
def test_every_nesting_keeps_every_law(data):
    struct = data.draw(structs(), label="struct")
    pipe = data.draw(nestings(struct, max_depth=4), label="pipe")
    x, key = data.draw(ept.arrays(struct), label="x"), data.draw(keys())
    ept.check_function(pipe, x, key=key)


@few
@hp.given(st.data())
def test_every_nesting_of_integers_keeps_every_law(data):
    struct = jax.ShapeDtypeStruct((3,), jnp.int32)
    pipe = data.draw(nestings(struct, max_depth=4), label="pipe")
    ept.check_function(pipe, data.draw(ept.arrays(struct)), key=data.draw(keys()))


@hp.given(st.data())
def test_every_nesting_computes_what_its_maths_computes(data):
    struct = data.draw(structs(), label="struct")
    pipe = ep.chain(data.draw(nestings(struct, max_depth=4), label="pipe"))
    x, key = data.draw(ept.arrays(struct), label="x"), data.draw(keys())
    wanted = eqx.filter_jit(by_hand)(pipe, x, key)
    assert_agree(eqx.filter_jit(pipe)(x, key=key), wanted)


@few
@hp.given(st.data())
def test_every_nesting_has_the_gradients_of_its_maths(data):
    struct = jax.ShapeDtypeStruct((4,), jnp.float32)
    pipe = ep.chain(data.draw(nestings(struct, max_depth=4), label="pipe"))
    x, key = data.draw(ept.arrays(struct), label="x"), data.draw(keys())

    @eqx.filter_jit
    @eqx.filter_grad
    def slope(both, call):
        pipe, x = both
        return jnp.sum(call(pipe, x) ** 2)

    ours = slope((pipe, x), lambda pipe, x: pipe(x, key=key))
    theirs = slope((pipe, x), lambda pipe, x: by_hand(pipe, x, key))
    assert_agree(ours, theirs, tolerance=1e-3)


@few
@hp.given(st.data())
def test_a_pipeline_in_inference_needs_no_more_than_the_pipeline(data):
    struct = data.draw(structs(), label="struct")
    pipe = ep.chain(data.draw(nestings(struct, max_depth=2), label="pipe"))
    x, key = data.draw(ept.arrays(struct)), data.draw(keys())
    y = eqx.filter_jit(eqx.nn.inference_mode(pipe))(x, key=key)
    assert jtu.tree_structure(y) == jtu.tree_structure(x)


def test_combinators_of_stateful_layers_keep_every_law():
    def make():
        norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")
        return ep.chain(
            ep.parallel(
                ep.batched(norm, axis_name="batch"), eqx.nn.Identity(), merge="mean"
            ),
            ep.cond(lambda x: x[0, 0] > 0, jnp.sin),
        )

    pipe, state = eqx.nn.make_with_state(make)()
    ept.check_function(pipe, jnp.stack([X, -X, 2 * X]), state=state)
