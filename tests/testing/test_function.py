"""`check_function`: each law reports its own bug, names it, and spares sound twins."""

import functools as ft
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from testing.planted.row import quiet

import eqx_pipe as ep
import eqx_pipe.testing as ept

X, KEY = jnp.array([1.0, -2.0, 3.0]), jr.key(0)


def only(law, fn, *args, **options):
    return ept.check_function(fn, *args, only=(law,), **options)[law]


def reversing(x):
    """Double the one input that it accepts; its own rule of `vmap` reverses lanes."""
    if not isinstance(x, jax.core.Tracer) and x[0] != 1:
        raise ValueError("only the input of the test")
    return _reversed(x)


@jax.custom_batching.custom_vmap
def _reversed(x):
    return 2 * x


@_reversed.def_vmap
def _reverse(size, batched, x):
    return 2 * x[::-1], True


class Rounded(eqx.Module):
    w: jax.Array
    straight: bool = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        whole = jnp.round(self.w)
        rest = jax.lax.stop_gradient(whole - self.w)
        return x * (self.w + rest if self.straight else whole)


def one_key_twice(x, *, key):
    return x + jr.normal(key, x.shape) * jr.uniform(key, x.shape)


def drops(x, i):
    return x.at[i].set(1.0, mode="drop")


@jax.custom_jvp
def nearly(x):
    return jnp.sin(x)


nearly.defjvp(lambda x, t: (jnp.sin(x[0]), 1.005 * jnp.cos(x[0]) * t[0]))


def repeated(fn):
    return lambda x, n: jax.lax.fori_loop(0, n, lambda i, v: fn(v), x)


BROKEN = [
    ("finite", lambda x: x / 0 * jnp.sign(x), jnp.log, (0 * X + 2,)),
    ("dtype", lambda x: x.astype(jnp.float32), jnp.sin, (X.astype("bfloat16"),)),
    ("vmap", reversing, lambda x: 2 * x, (X,)),
    ("params", Rounded(X, False), Rounded(X, True), (X,)),
    ("index", lambda x, i: x[i], lambda x, i: x[i % 3], (X, jnp.int32(7))),
    ("index", lambda x, i: x.at[i].set(1.0), drops, (X, jnp.int32(7))),
    ("derivative", repeated(nearly), repeated(jnp.sin), (X, jnp.int32(2))),
]


@pytest.mark.parametrize(("law", "bug", "sound", "args"), BROKEN)
def test_each_law_reports_its_bug_and_not_the_sound_twin(law, bug, sound, args):
    with pytest.raises(AssertionError, match=f"breaks 1 law of 1:\n  - `{law}`"):
        only(law, bug, *args)
    assert only(law, sound, *args).startswith("holds")


class Keeps(eqx.nn.StatefulLayer):
    index: eqx.nn.StateIndex
    kept: object = eqx.field(static=True)

    def __init__(self, kept):
        self.index, self.kept = eqx.nn.StateIndex(jnp.zeros(())), kept

    def __call__(self, x, state, *, key=None):
        return x, state.set(self.index, self.kept(x))


def test_the_next_state_is_judged_too():
    layer, state = eqx.nn.make_with_state(Keeps)(lambda x: jnp.log(x[1]))
    with pytest.raises(AssertionError, match="(?s)1 of 1 .* are NaN"):
        only("finite", layer, X, state=state)
    layer, state = eqx.nn.make_with_state(Keeps)(lambda x: x[0])
    assert only("finite", layer, X, state=state) == "holds"


class Averages(eqx.Module):
    """Equinox's usual stateful model: a plain Module, not a `StatefulLayer`."""

    index: eqx.nn.StateIndex
    decay: float = eqx.field(static=True)

    def __init__(self, decay):
        self.index, self.decay = eqx.nn.StateIndex(jnp.zeros(())), decay

    def __call__(self, x, state):
        mean = self.decay * state.get(self.index) + jnp.mean(x)
        return 2 * x, state.set(self.index, mean)


def averaged(x, state):
    (mean,) = jax.tree.leaves(state)
    return 2 * np.asarray(x), [0.9 * np.asarray(mean) + np.mean(x)]


def test_a_state_goes_where_the_function_takes_it():
    (right, state), (wrong, _) = (
        eqx.nn.make_with_state(Averages)(decay) for decay in (0.9, 0.5)
    )
    state = state.set(right.index, jnp.float32(3))
    (other,) = [eqx.tree_at(lambda m: m.index, wrong, right.index)]
    calls = [
        (lambda m: m, (X,), {"state": state}),
        (lambda m: m, (X, state), {}),
        (lambda m: lambda x, *, state: m(x, state), (X,), {"state": state}),
        (lambda m: lambda x, st: m(x, st), (X,), {"state": state}),
    ]
    for make, args, named in calls:
        found = only("reference", make(right), *args, reference=averaged, **named)
        assert found == "holds"
        with pytest.raises(
            AssertionError, match="the new state: 0 of|the new state: 2"
        ):
            only("reference", make(other), *args, reference=averaged, **named)
    # A reference that takes no state returns the new one, or leaves it out.
    _, new = right(X, jax.tree.map(jnp.copy, state))
    for after in (new, jax.tree.leaves(new)):
        alone = ft.partial(lambda after, x: (2 * x, after), after)
        assert only("reference", right, X, state=state, reference=alone) == "holds"
    with pytest.raises(AssertionError, match="the new state: 3.36667 found"):
        alone = lambda x: (2 * x, [np.float32(9.0)])  # noqa: E731
        only("reference", right, X, state=state, reference=alone)
    found = only("reference", right, X, state=state, reference=lambda x: 2 * x)
    assert found == "holds; the new state was not compared"
    ept.check_function(lambda state, x: right(x, state), state, X)
    with pytest.raises(TypeError, match="takes 1 arguments .* no `state`"):
        ept.check_function(lambda x: x, X, state=state)


def test_a_density_may_be_infinite_at_the_given_arguments():
    def outside(x):
        return jnp.where(x > 0, x, -jnp.inf)

    assert "the output is infinite" in only("finite", outside, -jnp.ones(3))
    assert (
        only("finite", outside, X) == "holds; 1 of 3 outputs are infinite, and left out"
    )
    assert "1 of 3 outputs are not finite" in only("derivative", outside, X)
    # The gradient is NaN at 0, where an output is infinite.
    assert only("finite", jnp.log, jnp.array([0.0, 2.0])).startswith("holds")


def test_an_output_that_is_nan_on_purpose_raises_no_alarm_of_derivatives():
    def outside(x):
        return jnp.where(x > 0, x**2, jnp.nan + x)

    assert "1 of 3 outputs are not finite" in only("derivative", outside, X)


def by_a_loop(x):
    return jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x)
    )[1]


def on_the_host(x):
    return jax.pure_callback(np.sin, x, x, vmap_method="sequential")


@jax.custom_vjp
def once(x):
    return jnp.sin(x)


once.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * on_the_host(x + np.pi / 2),))


@pytest.mark.parametrize(
    ("fn", "note"),
    [
        (by_a_loop, r"holds; no reverse mode \(ValueError: Reverse-mode"),
        (once, r"holds; no forward mode .*; no second derivative .*Pure callbacks"),
        (on_the_host, r"undecided: neither mode .*forward: .*; reverse: .*callbacks"),
    ],
)
def test_modes_and_orders_that_do_not_exist_are_said_with_the_reason(fn, note):
    assert re.match(note, only("derivative", fn, X))


def test_a_mode_that_was_chosen_is_noted():
    note = only("index", lambda x: x.at[jnp.array([0, 7])].get(mode="clip"), X)
    assert "by a `mode` that was chosen" in note


def test_a_key_used_twice_is_reported_with_its_line():
    with pytest.raises(AssertionError, match=r"used twice \(at .*test_function.py:\d+"):
        only("key", one_key_twice, X, key=KEY)
    gated = ep.chain(eqx.nn.Dropout(0.5), ep.gated(jnp.sin, gates=(lambda x: False,)))
    assert only("key", gated, X, key=KEY) == "holds"


def per_lane(keys_of, draw=jr.normal):
    """Return a function that adds a draw to each element, from keys of its own."""

    def noisy(x, *, key):
        return x + jax.vmap(lambda key: draw(key, (), x.dtype))(keys_of(key))

    return noisy


def folded(key, shape, dtype):
    return jr.normal(jr.fold_in(key, 7), shape, dtype)


def in_a_loop(x, *, key):
    keys = jnp.broadcast_to(key, x.shape)
    return jax.lax.map(
        lambda each: each[0] + jr.normal(each[1], (), x.dtype), (x, keys)
    )


COPIED = {
    "broadcast": per_lane(lambda key: jnp.broadcast_to(key, (3,))),
    "repeated": per_lane(lambda key: jnp.repeat(key[None], 3)),
    "indexed": per_lane(lambda key: key[None][jnp.zeros(3, jnp.int32)]),
    "stacked": per_lane(lambda key: jnp.stack([key] * 3)),
    "folded alike": per_lane(lambda key: jnp.broadcast_to(key, (3,)), folded),
    "split": per_lane(
        lambda key: jax.vmap(lambda k: jr.split(k)[0])(jnp.broadcast_to(key, (3,)))
    ),
    "in a loop": in_a_loop,
}
APART = {
    "split": per_lane(lambda key: jr.split(key, 3)),
    "folded": per_lane(lambda key: jax.vmap(jr.fold_in, (None, 0))(key, jnp.arange(3))),
    "broadcast, then folded": per_lane(
        lambda key: jax.vmap(jr.fold_in)(jnp.broadcast_to(key, (3,)), jnp.arange(3))
    ),
    "as one": lambda x, *, key: (
        x + jr.normal(jnp.broadcast_to(key, (1,))[0], (), x.dtype)
    ),
}


@pytest.mark.parametrize("name", COPIED)
def test_lanes_with_one_key_are_reported(name):
    line = "" if name == "stacked" else r"copies.* \(at .*test_function.py:\d+\); split"
    with pytest.raises(
        AssertionError, match=f"`key`(?s:.)*use.* one key.*{line}|twice"
    ):
        only("key", COPIED[name], X, key=KEY)


@pytest.mark.parametrize("name", APART)
def test_lanes_with_keys_of_their_own_raise_no_alarm(name):
    assert only("key", APART[name], X, key=KEY) == "holds"


def test_a_scalar_of_numpy_has_the_dtype_that_jax_gives_it():
    for scale in (np.float64(2.0), np.float32(2.0), np.int64(2)):
        found = ept.check_function(lambda x, by: x * by.astype(x.dtype), X, scale)
        assert found["dtype"] == "holds"
    with pytest.raises(AssertionError, match="it is float32 for an input of bfloat16"):
        only("dtype", lambda x: x * np.float64(2.0), X)


@pytest.mark.parametrize(
    "donating",
    [
        jax.jit(lambda x, y: x + y, donate_argnums=1),
        eqx.filter_jit(lambda x, y: x + y, donate="all"),
    ],
)
def test_a_donated_argument_is_named(donating):
    with pytest.raises(AssertionError, match="(?s)leaf: `[xy]`.*a call donates it"):
        only("pure", donating, X, X + 1)
    assert "pure" not in ept.check_function(donating, X, X + 1, skip=("pure",))


def test_numbers_that_xla_takes_for_zero_do_not_overflow():
    tiny = jnp.asarray(np.array([1e-40, 1.0], np.float32))
    for fn in (jnp.log, lambda x: 1 / x):
        assert "1 of 2 outputs are infinite" in only("finite", fn, tiny)
    with pytest.raises(AssertionError, match="overflows, or rounds to 0"):
        only("finite", lambda x: jnp.log(x * 1e-30), jnp.array([1e-10, 1.0]))


SCALE, OFFSETS = 2.0, {"a": np.ones(3, np.float32)}


def scaled(x):
    return x * SCALE + OFFSETS["a"].astype(x.dtype)


def multiplied(x):
    return x * SCALE


class ByGlobal(eqx.Module):
    w: jax.Array

    def __call__(self, x):
        return self.w * scaled(x)


def test_a_changed_global_is_read_again(monkeypatch):
    for fn in (scaled, ByGlobal(X), jax.vmap(scaled)):
        for value in (2.0, 3.0, jnp.float32(4.0)):
            monkeypatch.setitem(globals(), "SCALE", value)
            assert only("jit", fn, X) == only("vmap", fn, X) == "holds"
        OFFSETS["a"] += 1
        assert only("jit", fn, X) == "holds"
    for value in (2.0, 3.0):
        monkeypatch.setitem(globals(), "SCALE", value)
        assert only("jit", multiplied, X) == "holds"
        with ept.assert_compiles(0):
            only("jit", multiplied, X)


def test_a_function_that_refuses_other_inputs_is_not_judged_by_equal_lanes():
    def picky(x):
        return eqx.error_if(_reversed(x), x[0] != 1, "refused")

    assert "raises for other inputs" in only("vmap", picky, X)


def test_a_function_that_cannot_be_traced_is_undecided():
    only = ("derivative",)
    found = ept.check_function(lambda x: x if x[0] > 0 else -x, X, only=only)
    assert found["derivative"] == "undecided: the function cannot be traced"


def test_all_findings_are_in_one_report_with_the_arguments():
    def fn(first, second):
        return jnp.where(first > 0, 1.0, 0.0), jax.lax.stop_gradient(second)

    with pytest.raises(AssertionError) as caught:
        ept.check_function(fn, X, X)
    text = str(caught.value)
    assert "`fn` breaks 2 laws" in text and "leaf: `second`" in text
    assert "arguments: first: [ 1., -2., 3.]" in text
    assert "skip=('dtype', 'derivative')" in text


def test_the_stage_inside_a_pipeline_is_named():
    stages = {"good": jnp.tanh, "bad": jnp.linalg.norm}
    pipe = ep.chain(jnp.sin, ep.parallel(stages, merge="dict"))
    with pytest.raises(AssertionError, match=r"stage: `1\.bad` \(norm\)"):
        ept.check_function(pipe, jnp.zeros(4))


def test_arguments_by_name_and_a_key_among_them():
    def fn(x, *, scale, key):
        return x * scale + jr.normal(key, x.shape, x.dtype)

    kwargs = {"x": X, "scale": jnp.float32(2), "key": KEY}
    assert ept.check_function(fn, kwargs=kwargs)["key"] == "holds"
    assert ept.check_function(fn, X, kwargs={"scale": 2.0}, key=KEY)["vmap"] == "holds"


def test_a_reference_is_compared():
    assert only("reference", jnp.hypot, X, X, reference=np.hypot) == "holds"
    with pytest.raises(AssertionError, match="by the reference"):
        only("reference", jnp.hypot, X, X, reference=np.arctan2)
    with pytest.raises(AssertionError, match=r"shape \[3\] found, \[\] by the ref"):
        only("reference", jnp.hypot, X, X, reference=lambda x, y: 0.0)


def test_parameters_that_a_function_closes_over_are_not_blamed_on_it():
    layer, table = eqx.nn.MultiheadAttention(1, 4, key=KEY), jnp.ones(3)
    x = jnp.ones((2, 4))
    assert "closes over parameters" in only("dtype", lambda x: layer(x, x, x), x)
    with pytest.raises(AssertionError) as caught:
        only("dtype", lambda x: x * table, X)
    text = str(caught.value)
    assert "closes over `table` (float32[3])" in text and "test_function.py:" in text


def test_an_index_is_shown_as_it_was_written():
    with pytest.raises(AssertionError, match="index -100 is out of bounds"):
        only("index", lambda x, i: x[i], X, jnp.int32(-100))


def test_a_program_that_compiles_again_is_named_with_its_line():
    with pytest.raises(
        AssertionError, match=r"<lambda>.* \(at .*test_function.py:\d+\)"
    ):
        only("recompiles", lambda x: jax.jit(lambda v: v + 1)(x), X)


def test_rows_are_compared_on_several_devices():
    def sound(w, x):
        return jnp.tanh(x @ w)

    def mixes(w, x):
        return sound(w, x) - x.mean()

    w, x = jnp.ones((3, 3)) / 3, jnp.linspace(-1, 1, 24).reshape(8, 3)
    assert only("devices", sound, w, x, rows=("x",)) == "holds"
    with pytest.raises(AssertionError, match="the values of `shard_map` on 4 devices"):
        only("devices", mixes, w, x, rows=("x",))
    assert "devices" not in ept.check_function(sound, w, x, skip=("derivative",))


def test_arguments_without_elements_are_said():
    assert only("vmap", jnp.sin, jnp.zeros(0)) == "holds; `x` has no elements"


class Counted(eqx.Module):
    """Counts the calls of a layer where no law looks."""

    layer: eqx.nn.MLP

    def __call__(self, x, *, key=None):
        setattr(jax, "calls_of_a_test", getattr(jax, "calls_of_a_test", 0) + 1)  # noqa: B010
        return self.layer(x)


def test_all_laws_share_one_trace_and_few_programs():
    layer = Counted(eqx.nn.MLP(4, 4, 8, 2, key=KEY))
    with ept.assert_compiles(22):
        outcome = ept.check_function(layer, jnp.linspace(-1, 1, 4))
    assert set(outcome.values()) == {"holds"}
    assert jax.calls_of_a_test <= 9
    del jax.calls_of_a_test
    with ept.assert_compiles(0):
        ept.check_function(layer, jnp.linspace(0, 1, 4))


class Scaled(eqx.Module):
    by: object = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        return x * self.by


def test_equal_static_fields_of_other_types_share_no_programs():
    wide, sound = quiet(Scaled, np.float64(0.5)), Scaled(0.5)
    with jax.numpy_dtype_promotion("standard"):
        with pytest.raises(AssertionError, match="float32 for an input of bfloat16"):
            only("dtype", wide, X)
        assert only("dtype", sound, X) == "holds"


def test_kinks_are_left_out_and_counted():
    found = only("derivative", jax.nn.relu, jnp.array([0.0, 1.0, -1.0]))
    assert found == "holds; 1 of 3 outputs are at kinks, and left out"


def test_indices_of_installed_packages_are_not_judged():
    optax = pytest.importorskip("optax")
    loss, labels = optax.losses.multiclass_sparsemax_loss, jnp.array([7])
    with jax.numpy_dtype_promotion("standard"):
        assert only("index", loss, X[None], labels) == "holds"


def test_a_function_of_its_key_alone_can_be_checked():
    found = ept.check_function(lambda key: jr.normal(key, (2,)), key=KEY)
    assert found["key"] == found["jit"] == "holds"


def test_a_gamma_draw_has_no_derivative_to_compare():
    def draw(shape, *, key):
        return jr.gamma(key, shape)

    found = only("derivative", draw, X**2, key=KEY)
    assert found.startswith("undecided") and "distribution" in found


def ctc_loss():
    optax = pytest.importorskip("optax")
    logits, labels = jnp.linspace(-1, 1, 9).reshape(1, 3, 3), jnp.array([[1, 2]])
    return optax.ctc_loss, logits, jnp.zeros((1, 3)), labels, jnp.zeros((1, 2))


def ssim():
    dm_pix = pytest.importorskip("dm_pix")
    image = jnp.linspace(0, 1, 36).reshape(6, 6, 1)
    return lambda x: dm_pix.ssim(x, image.astype(x.dtype), filter_size=3), image**2


@pytest.mark.parametrize("case", [ctc_loss, ssim])
def test_promotion_by_a_function_of_jax_in_a_package_is_noted(case):
    fn, *args = case()
    with jax.numpy_dtype_promotion("standard"):
        found = only("dtype", fn, *args)
    assert found == "holds; bfloat16 cannot be judged"


def test_promotion_by_a_function_of_jax_in_own_code_is_not():
    weights = jnp.ones(3)
    with pytest.raises(AssertionError, match="float32 for an input of bfloat16"):
        only("dtype", lambda x: jnp.convolve(x, weights, mode="same"), X)


def test_a_solver_that_widens_its_state_is_not_blamed_on_the_vector_field():
    diffrax = pytest.importorskip("diffrax")
    term = diffrax.ODETerm(lambda t, y, args: -args * y)

    def solve(y0, rate):
        solver, options = diffrax.Euler(), {"max_steps": 4, "args": rate}
        return diffrax.diffeqsolve(term, solver, 0.0, 1.0, 0.5, y0, **options).ys[0]

    with jax.numpy_dtype_promotion("standard"):
        found = only("dtype", solve, X, X**2)
    assert found == "holds; bfloat16 cannot be judged"


@pytest.mark.slow
def test_a_solver_of_diffrax_raises_no_alarm():
    diffrax = pytest.importorskip("diffrax")
    term = diffrax.ODETerm(lambda t, y, args: -0.5 * y * y)
    steps = diffrax.PIDController(1e-4, 1e-6)

    def solve(y0):
        options = {"stepsize_controller": steps, "max_steps": 64}
        solver = diffrax.Tsit5()
        return diffrax.diffeqsolve(term, solver, 0.0, 1.0, 0.1, y0, **options).ys[0]

    ept.check_function(solve, jnp.linspace(0.5, 1.0, 4))


def test_compilations_are_counted():
    fn = jax.jit(lambda x: x * 3 + 1)
    x = np.ones(5, np.float32)
    with ept.assert_compiles(1):
        fn(x)
    with ept.assert_compiles(0):
        fn(x)
    with pytest.raises(AssertionError, match="at most 0 compilations, got 1"):
        with ept.assert_compiles(0):
            fn(np.ones(6, np.float32))
    with pytest.raises(ZeroDivisionError):  # as it is, and not the count
        with ept.assert_compiles(0):
            fn(np.ones(7, np.float32))
            raise ZeroDivisionError


@pytest.mark.parametrize("wrap", [eqx.filter_jit, eqx.filter_vmap, ep.vmap])
def test_a_wrapper_that_makes_its_module_anew_is_pure(wrap):
    layer = eqx.nn.Linear(3, 2, key=KEY)
    xs = X if wrap is eqx.filter_jit else X[None]
    assert only("pure", eqx.filter_jit(wrap(layer)), xs) == "holds"
