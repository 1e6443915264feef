"""`scan`: one cell over the steps of a sequence."""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from support.helpers import assert_agree, numbers

import eqx_pipe as ep

KEY = jr.key(0)
XS = numbers(jax.ShapeDtypeStruct((5, 2), jnp.float32))
GRU = eqx.nn.GRUCell(2, 3, key=KEY)
LSTM = eqx.nn.LSTMCell(2, 3, key=KEY)


class Noisy(eqx.Module):
    """A cell of two inputs with a parameter and draws."""

    weight: jax.Array

    def __call__(self, carry, x, *, key=None):
        noise = jr.normal(key, carry["sum"].shape)
        carry = {"sum": jnp.tanh(self.weight * carry["sum"] + x + noise)}
        return carry, {"y": 2 * carry["sum"], "same": carry["sum"]}


NOISY = Noisy(jnp.array([0.5, 2.0]))


def start(xs):
    return {"sum": xs[0] / 2}


@jax.jit
def loop(weight, xs, key):
    """Compute a scan of `NOISY` element by element."""
    cell, carry, ys = Noisy(weight), start(xs), []
    for i, x in enumerate(xs):
        carry, y = cell(carry, x, key=jr.fold_in(key, i))
        ys.append(y)
    return carry, jtu.tree_map(lambda *v: jnp.stack(v), *ys)


@hp.given(st.sampled_from(["sequence", "carry", "both"]), st.booleans())
def test_it_is_the_loop(returns, plain):
    pipe = ep.scan(NOISY, start, returns=returns, unroll=1 + 2 * plain)
    carry, ys = loop(NOISY.weight, XS, KEY)
    wanted = {"sequence": ys, "carry": carry, "both": (carry, ys)}[returns]
    assert_agree(eqx.filter_jit(pipe)(XS, key=KEY), wanted)


def attend(carry, x):
    """Attend to a memory that every step reads."""
    weights = jax.nn.softmax(x["memory"] @ (carry + x["x"]))
    return weights @ x["memory"], {"weights": weights}


@hp.given(st.sampled_from(["sequence", "carry"]), st.booleans())
def test_what_is_broadcast_equals_its_copies_in_each_step(returns, reverse):
    settings = {"init": jnp.zeros(2), "returns": returns, "reverse": reverse}
    once = ep.scan(attend, broadcast="memory", **settings)
    copies = ep.scan(attend, **settings)
    memory = numbers(jax.ShapeDtypeStruct((3, 2), jnp.float32))

    def loss(run, memory):
        return sum(jnp.sum(y**2) for y in jtu.tree_leaves(run(memory)))

    def copied(memory):
        return copies({"x": XS, "memory": jnp.stack([memory] * len(XS))})

    def shared(memory):
        return once({"x": XS, "memory": memory})

    both = jax.value_and_grad(loss, argnums=1)
    assert_agree(both(shared, memory), both(copied, memory))
    equations = jax.make_jaxpr(shared)(memory).eqns
    largest = max(v.aval.size for eqn in equations for v in eqn.outvars)
    assert largest < len(XS) * memory.size  # not copied for each step


def test_several_entries_are_broadcast_or_split():
    def cell(carry, x):
        return carry, (x["a"] + x["b"]) * x["c"] * len(x["text"])

    pipe = ep.scan(cell, 0.0, broadcast=("c", "text"))
    x = {"a": np.arange(3.0), "b": np.ones(3), "c": np.float32(2), "text": "ab"}
    assert pipe(x).tolist() == [4.0, 8.0, 12.0]


def test_the_cells_of_equinox_are_taken_as_they_are():
    @eqx.filter_jit
    def by_hand(cell, carry, out, xs):
        ys = []
        for x in xs:
            carry = cell(x, carry)
            ys.append(out(carry))
        return jnp.stack(ys)

    def hidden(carry):
        return carry

    zeros, run = jnp.zeros(3), eqx.filter_jit(lambda pipe: pipe(XS))
    both = run(ep.parallel(ep.scan(GRU), ep.scan(GRU, reverse=True)))
    back = by_hand(GRU, zeros, hidden, XS[::-1])[::-1]
    assert_agree(both, np.hstack([by_hand(GRU, zeros, hidden, XS), back]))
    assert_agree(run(ep.scan(GRU, reverse=True, returns="carry")), both[0, 3:])
    long = by_hand(LSTM, (zeros, zeros), lambda carry: carry[0], XS)
    (h, c), ys = run(ep.scan(LSTM, returns="both"))
    assert_agree((ys, h), (long, long[-1]))
    learned = ep.scan(GRU, jnp.ones(3), returns="carry")
    slope = eqx.filter_jit(eqx.filter_grad(lambda p: jnp.sum(p(XS))))(learned)
    assert np.any(slope.init != 0)


def test_outputs_are_not_stacked_where_the_carry_is_returned_alone():
    for returns in ("sequence", "carry"):
        text = str(jax.make_jaxpr(ep.scan(GRU, returns=returns))(XS))
        assert ("f32[5,3]" in text) == (returns == "sequence")
    assert ep.scan(GRU, returns="carry")(XS[:0]).tolist() == [0.0, 0.0, 0.0]


def test_draws_of_an_element_do_not_depend_on_the_direction():
    def cell(carry, x, *, key):
        return carry, jr.normal(key)

    ahead, back = (ep.scan(cell, jnp.zeros(()), reverse=r) for r in (False, True))
    wanted = jax.vmap(lambda i: jr.normal(jr.fold_in(KEY, i)))(jnp.arange(5))
    assert_agree((ahead(XS, key=KEY), back(XS, key=KEY)), (wanted, wanted))


def test_values_of_all_steps_are_listed_and_text_passes():
    cell = ep.graph(
        {"sum": jnp.add, "out": jnp.sin},
        {"sum": ["carry", "x"], "out": ["sum"]},
        ("sum", "out"),
        inputs=("carry", "x"),
    )
    pipe = ep.chain(rnn=ep.scan(cell, jnp.zeros(2)))
    found = ep.outputs(pipe)(XS)[1]
    assert list(found) == ["rnn.cell.sum", "rnn.cell.out", "rnn.cell", "rnn"]
    assert_agree(found["rnn.cell.sum"], jnp.cumsum(XS, axis=0))
    assert_agree(found["rnn"], jnp.sin(found["rnn.cell.sum"]))
    labelled = ep.scan(lambda c, x: (c, (x[0], "text")), jnp.zeros(()))
    assert labelled((XS, "label"))[1] == "text"
