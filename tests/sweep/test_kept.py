"""A sweep traces an unchanged function once, and sees changes that Python shows."""

import concurrent.futures
import dataclasses
import functools as ft
import gc
import types
import weakref
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support

import eqx_pipe as ep

SPACE, ONE = ep.Linspace(1, 2, 3), jnp.float32(1)
G = A = B = C = D = 1.0
ACT, ARRAY, OF_NUMPY = jnp.sin, jnp.ones(2), np.ones(3)
LIST, DICT = [1.0], {"a": [1.0], "f": jnp.sin}

helpers = types.ModuleType("helpers")
SOURCE = "w = 1.0\ndef g(x): return x * w"
exec(compile(SOURCE, "/home/helpers.py", "exec"), vars(helpers))


class Plain:
    w = 1.0

    @property
    def half(self):
        return A / 2

    @staticmethod
    def of(x):
        return x * B


@dataclasses.dataclass
class Config:
    w: float = 1.0
    more: list[float] = dataclasses.field(default_factory=lambda: [1.0])


class Pair(NamedTuple):
    x: float

    def times(self, x):
        return self.x * x * C


class Base(eqx.Module):
    def scale(self):
        return D


class Net(Base):
    weight: jax.Array
    act: object = eqx.field(static=True, default=abs)
    factor = 1.0

    def __call__(self, x):
        return self.act(x * self.weight * self.scale() * self.factor)

    def method(self, x):
        return x * G


OBJECT, CONFIG, PAIR, NET = Plain(), Config(), Pair(1.0), Net(jnp.float32(1))


def helper(x):
    return x * G


def with_default(p, c=1.0, *, d=1.0):
    return p * c * d


def with_attribute(p):
    return p * with_attribute.w


def imported(p):
    import support
    from support import w

    return p * w + support.w


def nested(inner):
    def middle(x):
        return inner["f"](x) * inner["w"]

    return {"f": lambda p: middle(p), "inner": inner}


INNER = {"f": lambda x: x, "w": 1.0}
NESTED = nested(INNER)["f"]


@jax.custom_jvp
def ruled(x):
    return x * 1.0


@ruled.defjvp
def _(primals, tangents):
    return ruled(*primals), tangents[0] * G


class Ticking(ep.Axis):
    dim: str | None = None

    def __len__(self):
        return 3

    def value(self, i, key):
        return i.astype(float) * G


def setting(name, value):
    return lambda monkeypatch: monkeypatch.setitem(globals(), name, value)


def attribute(owner, name, value):
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def item(owner, name, value):
    return lambda monkeypatch: monkeypatch.setitem(owner, name, value)


def in_place(array):
    def change(monkeypatch):
        array[0] += 4

    return change


CHANGES = {
    "global number": (lambda p: p * G, setting("G", 2.0)),
    "type of a number": (lambda p: jnp.full((), G), setting("G", 1)),
    "global function of a library": (lambda p: ACT(p), setting("ACT", jnp.cos)),
    "global of a helper": (lambda p: helper(p), setting("G", 2.0)),
    "helper": (lambda p: helper(p), setting("helper", lambda x: x * 5)),
    "name of Python": (lambda p: abs(-p), setting("abs", lambda x: x * 5)),
    "array": (lambda p: p * ARRAY.sum(), setting("ARRAY", jnp.ones(3))),
    "equal shapes": (lambda p: p * ARRAY.sum(), setting("ARRAY", jnp.zeros(2))),
    "NumPy array in place": (lambda p: p * jnp.sum(OF_NUMPY), in_place(OF_NUMPY)),
    "list": (lambda p: p * sum(LIST), in_place(LIST)),
    "dict": (lambda p: p * DICT["a"][0], item(DICT, "a", [4.0])),
    "list in a dict": (lambda p: p * DICT["a"][0], in_place(DICT["a"])),
    "function in a dict": (lambda p: DICT["f"](p), item(DICT, "f", jnp.cos)),
    "object": (lambda p: p * OBJECT.w, attribute(OBJECT, "w", 2.0)),
    "class": (lambda p: p * Plain.w, attribute(Plain, "w", 2.0)),
    "class of an object": (lambda p: p * OBJECT.w, attribute(Plain, "w", 2.0)),
    "global of a property": (lambda p: p * OBJECT.half, setting("A", 2.0)),
    "global of a static method": (lambda p: Plain.of(p), setting("B", 2.0)),
    "dataclass": (lambda p: p * CONFIG.w, attribute(CONFIG, "w", 2.0)),
    "list in a dataclass": (lambda p: p * CONFIG.more[0], in_place(CONFIG.more)),
    "global of a tuple's method": (lambda p: PAIR.times(p), setting("C", 2.0)),
    "module": (lambda p: p * helpers.w, attribute(helpers, "w", 2.0)),
    "global of a module": (lambda p: helpers.g(p), attribute(helpers, "w", 3.0)),
    "function of a module": (
        lambda p: helpers.g(p),
        attribute(helpers, "g", lambda x: x * 5),
    ),
    "function of JAX": (lambda p: jnp.sin(p), attribute(jnp, "sin", jnp.cos)),
    "function of JAX below": (
        lambda p: jnp.linalg.norm(p),
        attribute(jnp.linalg, "norm", jnp.cos),
    ),
    "imported within": (imported, attribute(support, "w", 2.0)),
    "Module": (lambda p: NET(p), setting("NET", Net(jnp.float32(2)))),
    "global of a base's method": (lambda p: NET(p), setting("D", 2.0)),
    "method of a base": (
        lambda p: NET(p),
        attribute(Base, "scale", lambda self: 7.0),
    ),
    "class of a Module": (NET, attribute(Net, "factor", 2.0)),
    "bound method": (NET.method, setting("G", 2.0)),
    "function in a Module": (
        Net(jnp.float32(1), lambda x: x * G),
        setting("G", 2.0),
    ),
    "default": (with_default, attribute(with_default, "__defaults__", (2.0,))),
    "keyword default": (
        with_default,
        attribute(with_default, "__kwdefaults__", {"d": 2.0}),
    ),
    "attribute of a function": (
        with_attribute,
        attribute(with_attribute, "w", 2.0),
    ),
    "code": (
        lambda p: helper(p),
        attribute(helper, "__code__", (lambda x: x * 7).__code__),
    ),
    "partial": (ft.partial(lambda c, p: p * c["a"][0], DICT), in_place(DICT["a"])),
    "partial of a method": (ft.partial(NET.method), setting("G", 2.0)),
    "closure of a closure": (NESTED, item(INNER, "w", 2.0)),
    "vmap": (lambda p: jax.vmap(helper)(p[None])[0], setting("G", 2.0)),
    "rule": (lambda p: jax.grad(lambda x: ruled(x))(p), setting("G", 2.0)),
    "callback": (
        lambda p: jax.pure_callback(
            lambda x: np.float32(G) * x, p, p, vmap_method="sequential"
        ),
        setting("G", 2.0),
    ),
}


def now(fn, space=SPACE):
    """Return the values of a plain loop, which traces nothing."""
    with jax.disable_jit():
        return ep.sweep(fn, space).values


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name, monkeypatch):
    fn, change = CHANGES[name]
    for owner in (with_attribute, support):
        monkeypatch.setattr(owner, "w", 1.0, raising=False)
    before = [ep.sweep(fn, SPACE).values for _ in range(2)][1]
    np.testing.assert_allclose(before, now(fn), rtol=1e-6)
    change(monkeypatch)
    after = ep.sweep(fn, SPACE).values
    np.testing.assert_allclose(after, now(fn), rtol=1e-6)
    assert (after.dtype, after.tolist()) != (before.dtype, before.tolist())


def test_cells_and_arrays_that_are_replaced_are_seen():
    weight, scale, values = ONE, 1.0, []

    def fn(p):
        return p * weight * scale

    for weight, scale in ((ONE, 1.0), (jnp.float32(2), 1.0), (ONE, 3.0)):  # noqa: B007
        values.append(ep.sweep(fn, SPACE).values.tolist())
        np.testing.assert_allclose(values[-1], now(fn), rtol=1e-6)
    assert len({tuple(some) for some in values}) == 3


def noise(p):
    return p * np.random.rand()  # the only way to see that nothing is traced


def test_an_unchanged_function_is_not_traced_again():
    def same(first, second):
        return first.values.tolist() == second.values.tolist()

    assert same(ep.sweep(noise, SPACE), ep.sweep(noise, SPACE))
    assert same(ep.sweep(noise, SPACE), ep.sweep(noise, SPACE))
    longer = ep.sweep(noise, ep.Linspace(1, 2, 4))
    assert longer.values[0] != ep.sweep(noise, SPACE).values[0]
    moved = ep.sweep(noise, ep.Linspace(0, 2, 3))
    assert moved.values[0] == 0  # the space is not kept


def test_what_no_guard_sees_is_named():
    for name in ("`np.random`", "`os.environ`", "files", '`globals()["x"]`'):
        assert name in ep.sweep.__doc__


@pytest.mark.parametrize(
    "config",
    [
        lambda: jax.default_matmul_precision("highest"),
        lambda: jax.numpy_dtype_promotion("standard"),
        lambda: jax.default_device(jax.devices()[-1]),
        lambda: jax.enable_x64(True),
        lambda: jax.numpy_rank_promotion("allow"),
    ],
)
def test_settings_of_jax_are_seen(config):
    first = ep.sweep(noise, SPACE).values.tolist()
    with config():
        assert ep.sweep(noise, SPACE).values.tolist() != first
    assert ep.sweep(noise, SPACE).values.tolist() == first


def test_functions_in_the_space_are_seen(monkeypatch):
    space = {"f": ep.Static([helper, jnp.sin]), "x": ep.Values([1.0])}
    axis = {"t": Ticking(), "m": Net(jnp.float32(1))}
    for given, fn in (
        (space, lambda p: p["f"](p["x"])),
        (axis, lambda p: p["m"](p["t"])),
    ):
        monkeypatch.setitem(globals(), "G", 1.0)
        first = ep.sweep(fn, given).values
        monkeypatch.setitem(globals(), "G", 2.0)
        after = ep.sweep(fn, given).values
        np.testing.assert_allclose(after, now(fn, given), rtol=1e-6)
        assert after.tolist() != first.tolist()


def test_costs_and_reductions_see_changes(monkeypatch):
    def both():
        reduced = ep.sweep(helper, SPACE, reduce=ep.reduce.Sum()).values
        return float(reduced), ep.sweep(lambda p: p, SPACE, order_by=helper).values[0]

    assert both() == (4.5, 1)
    monkeypatch.setitem(globals(), "G", 2.0)
    assert both() == (9, 1)


def test_a_dead_function_holds_nothing():
    def closed(array):
        return lambda p: p * array.sum()

    array = jnp.ones(100)
    alive, fn = weakref.ref(array), closed(array)
    ep.sweep(fn, SPACE)
    ep.sweep(fn, SPACE)
    del fn, array
    gc.collect()
    assert alive() is None


def test_a_large_array_is_not_held():
    arrays = {"w": jnp.ones(2**21)}

    def fn(p):
        return p * arrays["w"][0]

    ep.sweep(fn, SPACE)
    alive = weakref.ref(arrays["w"])
    arrays["w"] = jnp.zeros(2**21)
    gc.collect()
    assert alive() is None
    assert ep.sweep(fn, SPACE).values.tolist() == [0, 0, 0]


def test_threads_share_what_is_kept():
    def swept(_):
        return ep.sweep(helper, SPACE).values.tolist()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(swept, range(8))) == [[1, 1.5, 2]] * 8
