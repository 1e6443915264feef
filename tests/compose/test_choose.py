"""`cond` and `switch` under `vmap`, and their derivatives, against a loop."""

import functools as ft

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax
from support.branches import choose


def safe_log(params, x):
    """NaN or inf for every lane that does not choose the first branch."""
    scale, weight = params
    return choose(
        jnp.all(x > 0),
        [lambda x: jnp.tanh(weight @ x), lambda x: scale * jnp.log(x) @ weight],
        x,
    )


@ft.cache
def alone(derive=lambda branch: branch):
    """Return `derive` of `safe_log` for a lane by itself: Python chooses."""

    @jax.jit
    @derive
    def no(params, x):
        return jnp.tanh(params[1] @ x)

    @jax.jit
    @derive
    def yes(params, x):
        return params[0] * jnp.log(x) @ params[1]

    return lambda params, x: (yes if np.all(x > 0) else no)(params, x)


_rng = np.random.default_rng(0)
PARAMS = (jnp.float32(1.5), jnp.asarray(_rng.normal(size=(3, 3)), jnp.float32))
XS = np.abs(_rng.normal(size=(8, 3))) * np.where(np.arange(8)[:, None] % 3, 1, -1)
XS[0, 0] = 0
XS = jnp.asarray(XS, jnp.float32)


def stacked(one):
    results = [one(PARAMS, x) for x in XS]
    return jax.tree.map(lambda *a: np.stack(a), *results)


def close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


def summed(fn):
    return lambda params, x: fn(params, x).sum()


def gradient(fn):
    return jax.grad(summed(fn), argnums=(0, 1))


OVER_X = (None, 0)


def jvp(fn):
    return lambda params, x: jax.jvp(fn, (params, x), (params, x))


def hessian(fn):
    return jax.hessian(summed(fn), argnums=1)


@pytest.mark.parametrize("derive", [lambda f: f, gradient, jvp, hessian])
def test_each_example_has_what_its_branch_alone_gives(derive):
    found = jax.jit(jax.vmap(derive(safe_log), OVER_X))(PARAMS, XS)
    close(found, stacked(alone(derive)))


def batch_loss(params, xs):
    return jax.vmap(safe_log, OVER_X)(params, xs).sum()


def scan_loss(params, xs):
    def body(carry, x):
        return carry + jax.checkpoint(safe_log)(params, x).sum(), None

    return lax.scan(body, jnp.float32(0), xs)[0]


# Without `jit` each operation is a program of its own.
@pytest.mark.parametrize(
    ("loss", "wrap"),
    [
        (batch_loss, jax.jit),
        (scan_loss, jax.jit),
        pytest.param(batch_loss, lambda f: f, marks=pytest.mark.slow),
    ],
)
def test_the_gradient_of_a_batch_is_the_sum(loss, wrap):
    params, xs = stacked(alone(gradient))
    expected = jax.tree.map(lambda p: p.sum(0), params), xs
    close(wrap(jax.grad(loss, argnums=(0, 1)))(PARAMS, XS), expected)


def test_a_gradient_between_two_vmaps():
    grad = jax.vmap(jax.grad(batch_loss, argnums=(0, 1)), OVER_X)
    params, xs = jax.jit(grad)(PARAMS, XS.reshape(2, 4, 3))
    each = stacked(alone(gradient))
    close(xs.reshape(8, 3), each[1])
    close(*(jax.tree.map(lambda p: p.sum(0), p) for p in (params, each[0])))


def test_batched_parameters():
    scales = jnp.arange(1.0, 9.0)
    weights = jr.normal(jr.key(3), (8, 3, 3))
    got = jax.jit(jax.vmap(jax.grad(summed(safe_log))))((scales, weights), XS)
    one = alone(gradient)
    for i, (weight, x) in enumerate(zip(weights, XS, strict=True)):
        close([np.asarray(g)[i] for g in got], one((scales[i], weight), x)[0])


def test_keys_and_other_leaves_pass_through():
    keys = jr.split(jr.key(0), 4)

    def pick(i, key):
        branches = [lambda t: t, lambda t: {**t, "k": jr.fold_in(t["k"], 1)}]
        return choose(i, branches, {"k": key, "name": "n", "v": i})

    out = pick(jnp.int32(1), keys[0])
    assert out["name"] == "n"
    assert (jr.key_data(out["k"]) == jr.key_data(jr.fold_in(keys[0], 1))).all()
    got = jax.vmap(lambda i, k: pick(i, k)["k"])(jnp.arange(4) % 2, keys)
    assert (jr.key_data(got[2]) == jr.key_data(keys[2])).all()
    assert (jr.key_data(got[3]) == jr.key_data(jr.fold_in(keys[3], 1))).all()


def test_weak_types_take_the_dtype_of_the_other_branch():
    x = jnp.bfloat16(2)
    out = choose(x > 0, [lambda x: 0.0, lambda x: x * 2], x)
    assert out.dtype == jnp.bfloat16


def test_inside_shard_map():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")

    def local(xs):
        return jax.vmap(safe_log, OVER_X)(PARAMS, xs)

    for check in (True, False):
        run = jax.shard_map(
            local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check
        )
        close(jax.jit(run)(XS), stacked(alone()))


def member_loss(shared, own, xs):
    """Compute the loss of a member over a batch; NaN where `own * x` is negative."""
    weight, other = shared

    def one(x):
        def yes(x):
            return weight @ jnp.log(own * x)

        return choose(own * x[0] > 0, [lambda x: other @ x, yes], x)

    return jax.vmap(one)(xs).sum()


@pytest.mark.parametrize(
    "order",
    [
        "grad(vmap(vmap))",
        pytest.param("vmap(grad(vmap))", marks=pytest.mark.slow),
    ],
)
def test_a_member_in_which_no_example_chose_a_branch(order):
    shared = (jr.normal(jr.key(0), (3, 3)), jr.normal(jr.key(1), (3, 3)))
    owns = jnp.array([1.0, 0.0, -2.0, 3.0])
    xs = jnp.abs(jr.normal(jr.key(2), (4, 2, 3)))
    xs = xs.at[3].multiply(-1.0)  # the last member has no open lane either
    each = jax.vmap(member_loss, (None, 0, 0))
    argnums = (0, 1, 2)
    if order == "grad(vmap(vmap))":
        fn = jax.grad(lambda *a: each(*a).sum(), argnums)
    else:
        fn = jax.vmap(jax.grad(member_loss, argnums), (None, 0, 0))
    got = jax.jit(fn)(shared, owns, xs)
    one = jax.jit(jax.grad(member_loss, argnums))
    loop = [one(shared, o, x) for o, x in zip(owns, xs, strict=True)]
    expected = jax.tree.map(lambda *g: np.stack(g), *loop)
    if order == "grad(vmap(vmap))":
        expected = (jax.tree.map(lambda g: g.sum(0), expected[0]), *expected[1:])
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(got))
    close(got, expected)


def test_what_is_borrowed_from_another_member_has_no_gradient():
    """Check a parameter whose slope is infinite, which times zero would be NaN."""
    weight, xs = jnp.ones((2, 2)), jnp.ones((2, 2))
    owns = jnp.array([0.0, 4.0])
    chosen = jnp.array([[True, False], [False, False]])

    def member(own, chosen):
        def one(chosen, x):
            root = lambda x: (weight @ x).sum() * own**0.5  # noqa: E731
            branches = [lambda x: own * x.sum(), root]
            return choose(chosen, branches, x)

        return jax.vmap(one)(chosen, xs).sum()

    each = jax.vmap(member)
    backward = jax.jit(jax.grad(lambda owns: each(owns, chosen).sum()))(owns)
    forward = jax.jit(lambda *owns: jax.jvp(lambda o: each(o, chosen), *owns)[1])
    forward = forward((owns,), (jnp.ones(2),))
    assert backward.tolist() == forward.tolist() == [jnp.inf, 4]


def test_an_empty_batch():
    xs = jnp.zeros((0, 3))
    assert jax.jit(jax.vmap(safe_log, OVER_X))(PARAMS, xs).shape == (0, 3)

    params, slope = jax.jit(jax.grad(batch_loss, argnums=(0, 1)))(PARAMS, xs)
    assert slope.shape == (0, 3)
    assert not any(np.any(p) for p in jax.tree.leaves(params))
