"""The primitive behind `cond`, `switch` and `gated`, against a loop."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax

from eqx_pipe._conditionals.choose import choose as choose_with_state
from eqx_pipe._jaxprs import depends_on, may_loop_or_call_back, used_inputs


def choose(function, names, index, branches, x):
    with_state = [lambda x, state, b=b: (b(x), state) for b in branches]
    return choose_with_state(function, names, index, with_state, x)[0]


def safe_log(params, x):
    """NaN or inf for every lane that does not choose the first branch."""
    scale, weight = params
    return choose(
        "test",
        ("no", "yes"),
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


def test_parameters_are_not_copied_per_example():
    weights = jr.normal(jr.key(0), (2, 64, 64))
    xs = jr.normal(jr.key(1), (32, 64))

    def model(weights, x):
        branches = [lambda x, i=i: jnp.tanh(weights[i].T @ x) for i in range(2)]
        return choose("test", ("no", "yes"), x[0] > 0, branches, x)

    def loss(weights, xs):
        return jax.vmap(model, OVER_X)(weights, xs).sum()

    per_example = jax.vmap(jax.grad(summed(model), argnums=1), OVER_X)
    for fn in (jax.vmap(model, OVER_X), jax.grad(loss), per_example):
        compiled = jax.jit(fn).lower(weights, xs).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 32 * 64 * 64 * 4


def test_a_branch_that_no_example_chose_does_not_run():
    ran = []

    def noisy(name):
        return lambda x: jax.pure_callback(
            lambda x: (ran.append(name), np.asarray(x))[1],
            x,
            x,
            vmap_method="expand_dims",
        )

    @jax.jit
    def run(xs):
        return jax.vmap(
            lambda x: choose("t", ("no", "yes"), x > 0, [noisy("no"), noisy("yes")], x)
        )(xs)

    jax.block_until_ready(run(jnp.ones(4)))
    assert set(ran) == {"yes"}
    jax.block_until_ready(run(-jnp.ones(4)))
    assert set(ran) == {"yes", "no"}


def test_closed_lanes_neither_prolong_a_loop_nor_raise():
    def countdown(x):
        # never ends for a negative x
        loop = ft.partial(lax.while_loop, lambda v: v != 0, lambda v: v - 1)
        return jax.jit(loop)(x)

    def checked(x):
        return eqx.error_if(x, x < 0, "negative")

    xs = jnp.array([3, -1, 2, -5])
    for branch, expected in ((countdown, [0, -1, 0, -5]), (checked, [3, -1, 2, -5])):
        run = jax.jit(
            jax.vmap(
                lambda x, b=branch: choose(
                    "t", ("no", "yes"), x > 0, [lambda x: x, b], x
                )
            )
        )
        assert run(xs).tolist() == expected


def test_keys_and_other_leaves_pass_through():
    keys = jr.split(jr.key(0), 4)

    def pick(i, key):
        branches = [lambda t: t, lambda t: {**t, "k": jr.fold_in(t["k"], 1)}]
        return choose("t", ("a", "b"), i, branches, {"k": key, "name": "n", "v": i})

    out = pick(jnp.int32(1), keys[0])
    assert out["name"] == "n"
    assert (jr.key_data(out["k"]) == jr.key_data(jr.fold_in(keys[0], 1))).all()
    got = jax.vmap(lambda i, k: pick(i, k)["k"])(jnp.arange(4) % 2, keys)
    assert (jr.key_data(got[2]) == jr.key_data(keys[2])).all()
    assert (jr.key_data(got[3]) == jr.key_data(jr.fold_in(keys[3], 1))).all()


def test_weak_types_take_the_dtype_of_the_other_branch():
    x = jnp.bfloat16(2)
    out = choose("t", ("a", "b"), x > 0, [lambda x: 0.0, lambda x: x * 2], x)
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

        return choose("t", ("no", "yes"), own * x[0] > 0, [lambda x: other @ x, yes], x)

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
            return choose("t", ("no", "yes"), chosen, branches, x)

        return jax.vmap(one)(chosen, xs).sum()

    each = jax.vmap(member)
    backward = jax.jit(jax.grad(lambda owns: each(owns, chosen).sum()))(owns)
    forward = jax.jit(lambda *owns: jax.jvp(lambda o: each(o, chosen), *owns)[1])
    forward = forward((owns,), (jnp.ones(2),))
    assert backward.tolist() == forward.tolist() == [jnp.inf, 4]


def test_gradients_per_example_cost_what_a_select_costs():
    weights = jr.normal(jr.key(0), (2, 64, 64))
    xs = jr.normal(jr.key(1), (32, 64))

    def ours(weights, x):
        branches = [lambda x, i=i: jnp.tanh(weights[i] @ x) for i in range(2)]
        return choose("t", ("no", "yes"), x[0] > 0, branches, x)

    def hand(weights, x):
        no, yes = (jnp.tanh(weights[i] @ x) for i in range(2))
        return jnp.where(x[0] > 0, yes, no)

    def cost(fn):
        grad = jax.vmap(jax.grad(summed(fn), argnums=(0, 1)), OVER_X)
        return jax.jit(grad).lower(weights, xs).compile().cost_analysis()["flops"]

    assert cost(ours) <= 1.05 * cost(hand)


def test_an_empty_batch():
    xs = jnp.zeros((0, 3))
    assert jax.jit(jax.vmap(safe_log, OVER_X))(PARAMS, xs).shape == (0, 3)

    params, slope = jax.jit(jax.grad(batch_loss, argnums=(0, 1)))(PARAMS, xs)
    assert slope.shape == (0, 3)
    assert not any(np.any(p) for p in jax.tree.leaves(params))


@pytest.mark.parametrize("per_example", [False, True])
def test_collectives_over_the_batch_inside_a_branch(per_example):
    xs = jr.normal(jr.key(0), (8, 3)) + 1

    def one(x):
        mean = lax.pmean(x, "b")
        branches = [
            lambda x: (x, jnp.zeros(3)),
            lambda x: (x - mean, lax.pmean(x, "b")),
        ]
        pred = (x if per_example else mean)[0] > 0
        return choose("t", ("no", "yes"), pred, branches, x)

    out_axes = (0, 0 if per_example else None)
    y, mean = jax.vmap(one, axis_name="b", out_axes=out_axes)(xs)
    assert mean.shape == ((8, 3) if per_example else (3,))
    if not per_example:
        close(y, xs - xs.mean(0, keepdims=True))
        close(mean, xs.mean(0))


def test_the_position_in_the_batch_inside_a_branch():
    def one(x):
        branches = [lambda x: x, lambda x: x + lax.axis_index("b")]
        return choose("t", ("no", "yes"), jnp.array(True), branches, x)

    run = jax.vmap(one, in_axes=None, axis_name="b", axis_size=3, out_axes=0)
    assert run(jnp.int32(1)).tolist() == [1, 2, 3]


# What is read in a branch before it is run.


def test_what_outputs_depend_on_and_which_inputs_are_used():
    def fn(a, b, c):
        return jax.jit(lambda a, b: (a * 2, b + 1))(a, b)

    branch = jax.make_jaxpr(fn)(1.0, 2.0, 3.0)
    assert depends_on(branch, [True, False, False]) == [True, False]
    assert used_inputs(branch) == [True, True, False]
    assert not may_loop_or_call_back(branch)
