"""References (`jax.new_ref`) in pipelines: loops split them, choices keep to them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_pipe as ep

XS = np.array([1.0, -2.0, 3.0], np.float32)


def made():
    return jax.new_ref(jnp.arange(6.0).reshape(3, 2))


def writes(entries):
    entries["r"][...] += entries["x"]
    return jnp.sum(entries["r"][...])


def outcome(pipe, entry, jitted):
    """Return the output, and the reference after the call."""
    ref = made()

    def run(ref):
        return pipe({"r": ref, "x": entry})

    out = (jax.jit(run) if jitted else run)(ref)
    return np.asarray(out), np.asarray(ref[...])


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize(
    "pipe",
    [
        ep.batched(writes),
        ep.batched(writes, batch_size=2),
        ep.scan(lambda carry, x: (carry, writes(x)), 0.0),
        ep.scan(lambda carry, x: (carry, writes(x)), 0.0, reverse=True),
    ],
)
def test_loops_give_each_step_its_part(pipe, jitted):
    out, after = outcome(pipe, XS, jitted)
    np.testing.assert_allclose(after, made()[...] + XS[:, None])
    np.testing.assert_allclose(out, after.sum(axis=1))


class Counted(eqx.nn.StatefulLayer):
    count: eqx.nn.StateIndex = eqx.field(default_factory=lambda: eqx.nn.StateIndex(0))

    def __call__(self, x, state, *, key=None):
        return writes(x), state.set(self.count, state.get(self.count) + 1)


def test_a_batch_with_a_state():
    pipe, state = eqx.nn.make_with_state(
        lambda: ep.batched(Counted())  # pyright: ignore
    )()
    ref = made()
    out, state = pipe({"r": ref, "x": jnp.asarray(XS)}, state)
    np.testing.assert_allclose(ref[...], made()[...] + XS[:, None])
    np.testing.assert_allclose(out, ref[...].sum(axis=1))


def positive(entries):
    return jnp.sum(entries["x"]) > 0


CHOICES = {
    "cond": ep.cond(positive, writes, lambda e: e["x"]),
    "switch": ep.switch(lambda e: jnp.int32(positive(e)), lambda e: e["x"], writes),
    "gated": ep.gated(
        writes, lambda e: e["x"], gates=(positive, lambda e: ~positive(e))
    ),
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_changes_the_references_of_its_branch(name, jitted):
    pipe, start = CHOICES[name], made()[...]
    for x in XS[:2]:
        out, after = outcome(pipe, jnp.float32(x), jitted)
        np.testing.assert_allclose(after, start + max(x, 0))
        np.testing.assert_allclose(out, after.sum() if x > 0 else x)
    # For each example, where `lax.cond` has no rule: "State effect not supported".
    out, after = outcome(ep.batched(pipe), jnp.asarray(XS), jitted)
    np.testing.assert_allclose(after, start + np.maximum(XS, 0)[:, None])
    np.testing.assert_allclose(out, np.where(XS > 0, after.sum(axis=1), XS))


def own(x):
    """Add up in a reference of its own, in a loop."""
    total = jax.new_ref(jnp.zeros(()))

    def step(i, c):
        total[...] += i * x**2
        return c

    jax.lax.fori_loop(0, 3, step, 0)
    return total[...]


PICKS = [
    ep.cond(lambda x: x > 0, own, jnp.sin),
    ep.switch(lambda x: jnp.int32(x > 0), jnp.sin, own),
    ep.gated(own, jnp.sin, gates=(lambda x: x > 0, lambda x: x <= 0)),
]


@pytest.mark.parametrize("pipe", PICKS)
def test_a_branch_with_a_reference_of_its_own(pipe):
    wanted, slopes = np.where(XS > 0, 3 * XS**2, np.sin(XS)), 6 * XS
    slopes = np.where(XS > 0, slopes, np.cos(XS))
    every = ep.batched(pipe)
    np.testing.assert_allclose(jax.jit(lambda x: every(x))(XS), wanted, rtol=1e-6)
    gradient = jax.grad(lambda x: every(x).sum())(XS)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6)
    per_example = jax.vmap(jax.grad(lambda x: pipe(x)))(jnp.asarray(XS))
    np.testing.assert_allclose(per_example, slopes, rtol=1e-6)
    swept = ep.sweep(lambda x: pipe(x), ep.Values(XS))
    np.testing.assert_allclose(swept.values, wanted, rtol=1e-6)


def test_a_branch_reads_a_reference_outside_and_may_not_write_per_example():
    ref = made()
    pipe = ep.batched(ep.cond(lambda x: x > 0, lambda x: x * ref[2, 1], jnp.sin))
    np.testing.assert_allclose(pipe(XS), np.where(XS > 0, 5 * XS, np.sin(XS)), 1e-6)

    def writes_outside(x):
        ref[0, 0] = x
        return x

    once = ep.cond(lambda x: x > 0, writes_outside, jnp.sin)
    once(jnp.float32(7))
    assert ref[0, 0] == 7
    with pytest.raises(Exception, match="Move the array reference to be an argument"):
        ep.batched(once)(XS)
