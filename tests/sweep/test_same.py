"""A kept trace is used only if nothing that the function can reach has changed.

Each case makes a function and a change, and the sweep after it is that of a plain loop.
"""

import _csv
import abc
import collections
import contextlib
import dataclasses
import decimal
import enum
import functools as ft
import importlib.util
import inspect
import math
import operator
import pathlib
import shutil
import sys
import tempfile
import types
import weakref

import beartype
import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept

LINE = ep.Linspace(1.0, 2.0, 3)
CASES, KEPT = {}, set()


def case(make):
    CASES[make.__name__] = make
    return make


def kept(make):
    """Add a case whose function is kept as long as nothing has changed."""
    KEPT.add(make.__name__)
    return case(make)


def set_to(owner, name, value):
    return lambda: setattr(owner, name, value)


def put(owner, name, value):
    return lambda: owner.__setitem__(name, value)


def module(name="settings", **values):
    made = types.ModuleType(name)
    vars(made).update(values)
    return made


# Modules: by any way, and by any name.


@kept
def a_slot_with_underscores():
    class Config:
        __slots__ = ("__rate__",)

    cfg = Config()
    cfg.__rate__ = 1.0
    return lambda p: p * cfg.__rate__, set_to(cfg, "__rate__", 3.0)


@case
def a_docstring_by_a_function_of_inspect():
    def helper():
        """1.0"""

    getdoc = inspect.getdoc
    return lambda p: p * float(getdoc(helper)), set_to(helper, "__doc__", "3.0")


@case
def a_list_that_is_too_deep_to_read():
    base = nested = [1.0]
    for _ in range(5000):
        nested = [nested]

    def fn(p):
        rate = nested
        while isinstance(rate, list):
            rate = rate[0]
        return p * rate

    return fn, put(base, 0, 3.0)


@case
def a_converter_of_a_module():
    box = [1.0]

    class Config(eqx.Module):
        rate: float = eqx.field(converter=lambda rate: rate * box[0])

    return lambda p: p * Config(1.0).rate, put(box, 0, 3.0)


@case
def a_function_that_makes_a_pytree():
    box = [1.0]

    class Config:
        rate = 1.0

    def make(_, rates):
        config = Config()
        config.rate = rates[0] * box[0]
        return config

    jax.tree_util.register_pytree_node(Config, lambda x: ((x.rate,), None), make)
    config = Config()
    fn = lambda p: p * jax.tree.map(jnp.asarray, config).rate  # noqa: E731
    return fn, put(box, 0, 3.0)


@kept
def the_name_of_a_function():
    def helper():
        pass

    fn = lambda p: p * (3.0 if helper.__name__ == "other" else 1.0)  # noqa: E731
    return fn, set_to(helper, "__name__", "other")


@kept
def the_full_name_of_a_function():
    def helper():
        pass

    fn = lambda p: p * (3.0 if helper.__qualname__ == "other" else 1.0)  # noqa: E731
    return fn, set_to(helper, "__qualname__", "other")


@kept
def a_module_in_a_closure():
    cfg = module(rate=1.0)
    return lambda p: p * cfg.rate, set_to(cfg, "rate", 3.0)


@kept
def a_module_in_a_dict():
    table = {"a": module(rate=1.0)}
    return lambda p: p * table["a"].rate, set_to(table["a"], "rate", 3.0)


@kept
def a_module_of_the_name_of_a_library():
    cfg = module("numpy", rate=1.0)
    return lambda p: p * cfg.rate, set_to(cfg, "rate", 3.0)


@kept
def a_name_in_a_pattern():
    cfg = module(rate=1.0)

    def fn(p):
        match cfg:
            case types.ModuleType(rate=rate):
                return p * rate

    return fn, set_to(cfg, "rate", 3.0)


@kept
def a_name_that_is_found_later():
    scope = {"a": 2.0}
    source = "def fn(p):\n try: return p * a\n except NameError: return 3 * p * b"
    exec(source, scope)
    return scope["fn"], lambda: scope.update(b=scope.pop("a"))


@case
def an_attribute_by_text():
    cfg, name, get = module(rate=1.0), "rate", getattr
    return lambda p: p * get(cfg, name), set_to(cfg, "rate", 3.0)


@case
def an_attribute_that_may_be_there():
    cfg = module()
    return lambda p: p * (3 if hasattr(cfg, "rate") else 1), set_to(cfg, "rate", 3.0)


@case
def a_getter_by_another_name():
    cfg, getter, name = module(rate=1.0), operator.attrgetter, "rate"
    return lambda p: p * getter(name)(cfg), set_to(cfg, "rate", 3.0)


@case
def a_format():
    cfg, text = module(rate=1.0), "{0.rate}".format
    return lambda p: p * float(text(cfg)), set_to(cfg, "rate", 3.0)


@case
def all_variables():
    cfg, every, name = module(rate=1.0), vars, "rate"
    return lambda p: p * every(cfg)[name], set_to(cfg, "rate", 3.0)


@case
def a_module_that_is_loaded_by_name():
    cfg = sys.modules["settings_of_a_test"] = module("settings_of_a_test", rate=1.0)
    load, name = importlib.import_module, "settings_of_a_test"
    return lambda p: p * load(name).rate, set_to(cfg, "rate", 3.0)


@case
def a_frame_of_the_caller():
    box, frames = [1.0], inspect.stack

    def scale():
        return frames()[1].frame.f_locals["rate"]

    def fn(p):
        rate = box[0]
        return p * scale() if rate else p

    return fn, put(box, 0, 3.0)


@kept
def an_array_that_is_stacked():
    ones = [jnp.ones(3)]
    return lambda p: p * jnp.stack(ones).sum(), put(ones, 0, jnp.zeros(3))


@kept
def a_module_that_the_function_imports():
    cfg = sys.modules["settings_of_a_test"] = module("settings_of_a_test", rate=1.0)

    def fn(p):
        import settings_of_a_test  # type: ignore[import-not-found]

        return p * settings_of_a_test.rate

    return fn, set_to(cfg, "rate", 3.0)


@kept
def a_name_that_is_gone_from_a_module():
    cfg = module(a=1.0)

    def fn(p):
        try:
            return p * cfg.a
        except AttributeError:
            return 3 * p * cfg.b

    return fn, lambda: vars(cfg).update(b=vars(cfg).pop("a"))


@kept
def a_function_put_into_a_library():
    math.scale_of_a_test = lambda x: x
    fn = lambda p: math.scale_of_a_test(p)  # noqa: E731
    return fn, set_to(math, "scale_of_a_test", lambda x: 3 * x)


@case
def a_module_with_attributes_of_its_own():
    table = {"rate": 1.0}

    def get(name):
        if name in table:
            return table[name]
        raise AttributeError(name)

    cfg = module(__getattr__=get)
    return lambda p: p * cfg.rate, put(table, "rate", 3.0)


@kept
def a_list_of_a_library():
    sys.argv_of_a_test = [1.0]
    return lambda p: p * sys.argv_of_a_test[0], put(sys.argv_of_a_test, 0, 3.0)


@kept
def builtins_of_its_own():
    own = {"rate": 1.0}
    scope = {"__builtins__": own}
    exec("def fn(p): return p * rate", scope)
    return scope["fn"], put(own, "rate", 3.0)


# Classes: wherever they come from, with all that they inherit.


@kept
def a_class_made_by_a_library():
    made = dataclasses.make_dataclass("Made", [("x", float)])
    made.rate, one = 1.0, made(1.0)
    return lambda p: p * one.rate, set_to(made, "rate", 3.0)


@kept
def a_class_made_by_its_metaclass():
    made = abc.ABCMeta("Made", (), {"rate": 1.0})
    one = made()
    return lambda p: p * one.rate, set_to(made, "rate", 3.0)


@kept
def other_bases():
    class A:
        rate = 1.0

    class B:
        rate = 3.0

    class C(A):
        pass

    one = C()
    return lambda p: p * one.rate, set_to(C, "__bases__", (B,))


@kept
def a_metaclass():
    class Meta(type):
        rate = 1.0

    class A(metaclass=Meta):
        pass

    return lambda p: p * A.rate, set_to(Meta, "rate", 3.0)


@kept
def classes_that_say_they_are_equal():
    class Equal(type):
        def __eq__(cls, other):
            return True

        def __hash__(cls):
            return 1

    box = [Equal("A", (), {"rate": 1.0})]
    return lambda p: p * box[0].rate, put(box, 0, Equal("B", (), {"rate": 3.0}))


@kept
def names_for_patterns():
    @dataclasses.dataclass
    class Pair:
        a: float
        b: float

    pair = Pair(1.0, 3.0)

    def fn(p):
        match pair:
            case Pair(first, _):
                return p * first

    return fn, set_to(Pair, "__match_args__", ("b", "a"))


@case
def metadata_of_a_field():
    table = {"rate": 1.0}

    @dataclasses.dataclass
    class Config:
        x: float = dataclasses.field(default=0.0, metadata=table)

    rate = lambda: dataclasses.fields(Config)[0].metadata["rate"]  # noqa: E731
    return lambda p: p * rate(), put(table, "rate", 3.0)


@kept
def a_virtual_subclass():
    class Base(abc.ABC):  # noqa: B024
        pass

    class A:
        pass

    one = A()
    fn = lambda p: p * (3 if isinstance(one, Base) else 1)  # noqa: E731
    return fn, lambda: Base.register(A)


@kept
def what_a_setter_does():
    box = [1.0]

    class A:
        @property
        def x(self):
            return self.kept

        @x.setter
        def x(self, value):
            self.kept = value * box[0]

    def fn(p):
        one = A()
        one.x = 1.0
        return p * one.x

    return fn, put(box, 0, 3.0)


@kept
def a_class_that_a_function_makes():
    box = [1.0]

    class Base:
        def __init_subclass__(cls):
            cls.rate = box[0]

    def fn(p):
        class Sub(Base):
            pass

        return p * Sub.rate

    return fn, put(box, 0, 3.0)


@kept
def another_class_of_python():
    box = [float]
    return lambda p: p * box[0](1.5), put(box, 0, int)


@kept
def equal_bases():
    A, B = type("A", (), {}), type("A", (), {})

    class C(A):
        pass

    one = C()
    fn = lambda p: p * (1.0 if isinstance(one, A) else 3.0)  # noqa: E731
    return fn, set_to(C, "__bases__", (B,))


@kept
def the_name_of_a_class():
    class A:
        pass

    one = A()
    return lambda p: p * len(type(one).__name__), set_to(A, "__name__", "ABC")


# Objects: attributes, slots, items, and the value of a number or text.


@kept
def an_ordered_dict_with_an_attribute():
    table = collections.OrderedDict()
    table.rate = 1.0
    return lambda p: p * table.rate, set_to(table, "rate", 3.0)


@kept
def a_number_that_says_another():
    class Number(float):
        def __float__(self):
            return 0.0

    box = [Number(1.0)]
    return lambda p: p * (box[0] + 0), put(box, 0, Number(3.0))


@kept
def a_subclass_of_partial():
    class Scaled(ft.partial):
        rate = 1.0

        def __call__(self, x):
            return super().__call__(x) * self.rate

    one = Scaled(lambda x: x)
    return lambda p: one(p), set_to(Scaled, "rate", 3.0)


@case
def an_object_that_shows_another_dict():
    class A:
        __slots__ = ("real",)
        __dict__ = property(lambda self: {})

    one = A()
    one.real = [1.0]
    return lambda p: p * one.real[0], put(one.real, 0, 3.0)


@kept
def a_slot_that_is_deleted():
    class A:
        __slots__ = ("a", "b")

    one = A()
    one.a = 1.0

    def change():
        del one.a
        one.b = 1.0

    return lambda p: p * (1.0 if hasattr(one, "a") else 3.0), change


@kept
def the_order_of_a_dict():
    table = {"a": 1.0, "b": 3.0}
    change = lambda: table.update(a=table.pop("a"))  # noqa: E731
    return lambda p: p * next(iter(table.values())), change


@kept
def a_range_with_another_end():
    box = [range(0, 3, 2)]
    return lambda p: p * box[0].stop, put(box, 0, range(0, 4, 2))


@kept
def a_time_in_another_unit():
    box, second = [np.timedelta64(1, "s")], np.timedelta64(1, "s")
    return lambda p: p * float(box[0] / second), put(box, 0, np.timedelta64(1, "h"))


@kept
def zeros_of_another_sign():
    box = [0.0]
    return lambda p: p * np.copysign(1.0, box[0]), put(box, 0, -0.0)


@case
def a_numpy_array():
    array = np.ones(3)
    return lambda p: p * float(array.sum()), put(array, 0, 7.0)


@case
def a_ref():
    ref = jax.new_ref(jnp.array(1.0))
    return lambda p: p * ref[...], put(ref, ..., 3.0)


@kept
def a_deque():
    box = collections.deque([1.0])
    return lambda p: p * box[0], put(box, 0, 3.0)


@case
def objects_in_a_set():
    class A:
        rate = 1.0

    one = A()
    box = frozenset([one])
    return lambda p: p * sum(x.rate for x in box), set_to(one, "rate", 3.0)


@case
def a_generator():
    box = [1.0]

    def numbers():
        while True:
            yield box[0]

    found = numbers()
    return lambda p: p * next(found), put(box, 0, 3.0)


@case
def a_cache():
    box = [1.0]
    cached = ft.lru_cache(lambda: box)
    return lambda p: p * cached()[0], put(box, 0, 3.0)


@kept
def a_member_of_an_enum():
    kind = enum.Enum("Kind", {"A": (1.0,)})
    kind.A.rate = 1.0
    return lambda p: p * kind.A.rate, set_to(kind.A, "rate", 3.0)


@kept
def a_weak_reference():
    class A:
        rate = 1.0

    one = A()
    ref = weakref.ref(one)
    return lambda p: p * ref().rate, set_to(one, "rate", 3.0)


@kept
def the_same_list_at_another_place():
    a, b = [1.0], [3.0]
    box = [a, b, a]
    return lambda p: p * box[2][0], put(box, 2, b)


@kept
def lists_in_another_order_of_depth():
    box = [[[1.0]]]
    return lambda p: p * (1.0 if len(box[0]) == 1 else 3.0), put(box, 0, [1.0, []])


@kept
def another_key():
    table = {"a": 1.0}
    change = lambda: table.update(b=table.pop("a"))  # noqa: E731
    return lambda p: p * (1.0 if "a" in table else 3.0), change


@kept
def a_key_that_is_no_text():
    table = {1: 2.0}
    return lambda p: p * [*table][0], lambda: table.update({3: table.pop(1)})


@kept
def a_value_whose_key_is_no_text():
    table = {1: 1.0}
    return lambda p: p * table[1], put(table, 1, 3.0)


@kept
def dicts_in_another_order_of_depth():
    box = [{9: {1: 2, 3: 4}}]
    fn = lambda p: p * (1.0 if len(box[0]) == 1 else 3.0)  # noqa: E731
    return fn, put(box, 0, {9: 1, 2: {3: 4}})


@kept
def numbers_in_a_set():
    box = [frozenset({1.0})]
    return lambda p: p * max(box[0]), put(box, 0, frozenset({3.0}))


@kept
def a_path():
    box = [pathlib.PurePath("a")]
    return lambda p: p * len(str(box[0])), put(box, 0, pathlib.PurePath("abc"))


@kept
def a_jaxpr():
    box = [jax.make_jaxpr(lambda x: x)(1.0), jax.make_jaxpr(lambda x: 3 * x)(1.0)]
    fn = lambda p: jax.extend.core.jaxpr_as_fun(box[0])(p)[0]  # noqa: E731
    return fn, put(box, 0, box.pop())


@kept
def a_derivative_for_a_function_of_a_package():
    box = [1.0]
    sine = jax.custom_jvp(jnp.sin)
    sine.defjvp(lambda at, to: (jnp.sin(at[0]), box[0] * to[0]))
    return lambda p: jax.grad(sine)(p), put(box, 0, 3.0)


@kept
def a_constant_of_a_jaxpr():
    ones = jnp.ones(2)
    jaxpr = jax.make_jaxpr(lambda x: x * ones)(1.0)
    fn = lambda p: jax.extend.core.jaxpr_as_fun(jaxpr)(p)[0]  # noqa: E731
    return fn, put(jaxpr.consts, 0, 3 * ones)


# Functions: what they hold, and what wraps them.


@kept
def another_function_of_numpy():
    box = [np.add]
    return lambda p: p * float(box[0](1.0, 3.0)), put(box, 0, np.multiply)


@kept
def another_function_of_a_library():
    box = [math.floor]
    return lambda p: p * box[0](1.5), put(box, 0, math.ceil)


@kept
def a_function_of_the_same_name():
    box = [pow]
    fn = lambda p: p * (1.0 if isinstance(box[0](2, 3), int) else 3.0)  # noqa: E731
    return fn, put(box, 0, math.pow)


@case
def a_function_of_an_extension_of_users():
    folder = tempfile.mkdtemp()
    file = shutil.copy(pathlib.Path(_csv.__file__), folder)
    spec = importlib.util.spec_from_file_location("_csv", file)
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    limit = extension.field_size_limit
    limit(1)
    return lambda p: p * limit(), lambda: limit(3)


@kept
def another_method_of_a_text():
    box = ["a".upper]
    return lambda p: p * (1.0 if box[0]() == "A" else 3.0), put(box, 0, "a".lower)


@kept
def another_method_of_an_object():
    class A:
        rate = 1.0

    one = A()
    box = [types.MethodType(lambda self: self.rate, one)]
    other = types.MethodType(lambda self: 3 * self.rate, one)
    return lambda p: p * box[0](), put(box, 0, other)


@kept
def a_method_of_another_object():
    class A:
        def __init__(self, rate):
            self.rate = rate

        def scale(self):
            return self.rate

    box = [A(1.0).scale]
    return lambda p: p * box[0](), put(box, 0, A(3.0).scale)


@kept
def another_kind_of_method():
    class A:
        @staticmethod
        def count(*args):
            return 1.0 + len(args)

    plain = vars(A)["count"].__func__
    return lambda p: p * A.count(), set_to(A, "count", classmethod(plain))


@kept
def the_function_of_a_partial():
    box = [ft.partial(lambda x: x)]
    return lambda p: box[0](p), put(box, 0, ft.partial(lambda x: 3 * x))


@kept
def an_argument_of_a_partial():
    scale = lambda a, x: a * x  # noqa: E731
    box = [ft.partial(scale, 1.0)]
    return lambda p: box[0](p), put(box, 0, ft.partial(scale, 3.0))


@kept
def a_keyword_of_a_partial():
    scale = lambda x, a: a * x  # noqa: E731
    box = [ft.partial(scale, a=1.0)]
    return lambda p: box[0](p), put(box, 0, ft.partial(scale, a=3.0))


@kept
def another_jit_of_a_function():
    def scale(x, n):
        return x * (3.0 if isinstance(n, int) else 1.0)

    box = [jax.jit(scale)]
    return lambda p: box[0](p, 1), put(box, 0, jax.jit(scale, static_argnums=1))


@kept
def an_attribute_of_a_function():
    inner = lambda x: x  # noqa: E731
    inner.rate = 1.0
    return lambda p: inner(p) * inner.rate, set_to(inner, "rate", 3.0)


@kept
def an_attribute_of_a_function_that_a_library_made():
    inner = contextlib.contextmanager(lambda: iter([1.0]))
    inner.rate = 1.0
    return lambda p: p * inner.rate, set_to(inner, "rate", 3.0)


@kept
def what_beartype_wraps():
    box = [1.0]

    @beartype.beartype
    def inner(x: jax.Array | float) -> jax.Array | float:
        return x * box[0]

    return lambda p: inner(p), put(box, 0, 3.0)


@kept
def a_method_of_a_dict():
    table = {"rate": 1.0}
    get = table.get
    return lambda p: p * get("rate"), put(table, "rate", 3.0)


@kept
def a_method_of_a_class_of_users():
    box = [1.0]

    class Table(dict):
        def __setitem__(self, name, value):
            super().__setitem__(name, box[0])

    make = Table.fromkeys
    return lambda p: p * make("a")["a"], put(box, 0, 3.0)


@kept
def an_attribute_of_a_jitted_function():
    jitted = jax.jit(lambda x: x)
    jitted.rate = 1.0
    return lambda p: jitted(p) * jitted.rate, set_to(jitted, "rate", 3.0)


@case
def a_hidden_function_of_numpy():
    box = [1.0]
    scaled = np.frompyfunc(lambda x: x * box[0], 1, 1)
    return lambda p: p * float(scaled(1.0)), put(box, 0, 3.0)


@kept
def a_context_manager():
    box = [1.0]

    @contextlib.contextmanager
    def context():
        yield box[0]

    def fn(p):
        with context() as rate:
            return p * rate

    return fn, put(box, 0, 3.0)


@kept
def an_inner_function_with_other_code():
    inner, other = (lambda x: x), (lambda x: 3 * x)
    return lambda p: inner(p), set_to(inner, "__code__", other.__code__)


@kept
def a_rule_of_a_derivative():
    box = [1.0]

    @jax.custom_jvp
    def ruled(x):
        return x * box[0]

    ruled.defjvp(lambda primals, tangents: (ruled(*primals), tangents[0]))
    return lambda p: ruled(p), put(box, 0, 3.0)


@kept
def a_static_field():
    class Layer(eqx.Module):
        config: dict = eqx.field(static=True)

        def __call__(self, p):
            return p * self.config["rate"]

    layer = Layer({"rate": 1.0})
    return layer, put(layer.config, "rate", 3.0)


@kept
def an_array_of_a_space_in_an_object():
    values = jnp.array([1.0, 2.0, 3.0])
    holder = types.SimpleNamespace(values=values)
    space = {"x": ep.Mapped(lambda n: n * holder.values[0], ep.Values(values))}
    return lambda p: p["x"], set_to(holder, "values", 3 * values), space


def check(fn, change, space=LINE):
    """Raise unless a sweep sees a change; return the values before and after."""
    swept = lambda: np.asarray(ep.sweep(fn, space, progress=False).values)  # noqa: E731
    before = swept()
    swept(), change()
    with jax.disable_jit():
        plain = np.asarray(ep.sweep(fn, space, progress=False).values)
    assert np.allclose(swept(), plain, rtol=1e-5)
    assert not np.allclose(before, plain)


@pytest.mark.parametrize("name", CASES)
def test_a_sweep_sees_a_change(name):
    check(*CASES[name]())


@pytest.mark.parametrize("name", sorted(KEPT))
def test_an_unchanged_function_is_not_traced_again(name):
    fn, change, *space = CASES[name]()  # `change` keeps some of them alive
    traced = []

    def listen(event, duration, **_):
        traced.append(event)

    for _ in range(2):
        ep.sweep(fn, *(space or [LINE]), progress=False)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        ep.sweep(fn, *(space or [LINE]), progress=False)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert change and not [event for event in traced if "jaxpr_trace" in event]


def test_a_jitted_function_is_read_though_jax_keeps_its_trace():
    box = [1.0]
    scaled = jax.jit(lambda x: x * box[0])
    fn = lambda p: scaled(p)  # noqa: E731
    before = ep.sweep(fn, LINE).values
    box[0] = 3.0
    jax.clear_caches()
    assert np.array_equal(ep.sweep(fn, LINE).values, 3 * before)


def test_another_derivative_of_a_function_of_jax_is_seen():
    relu, rule = jax.nn.relu, jax.nn.relu.jvp
    fn = lambda p: jax.grad(relu)(p)  # noqa: E731
    assert np.array_equal(ep.sweep(fn, LINE).values, [1, 1, 1])
    try:
        relu.defjvps(lambda tangent, out, x: 7 * tangent)
        assert np.array_equal(ep.sweep(fn, LINE).values, [7, 7, 7])
    finally:
        relu.defjvp(rule)


def test_jax_itself_keeps_the_trace_of_a_ufunc():
    box = [1.0]
    scaled = jnp.frompyfunc(lambda x, y: x * box[0] + y, 2, 1)
    assert scaled(2.0, 0.0) == 2.0
    box[0] = 3.0
    # If JAX sees the change one day, so does a sweep, and the docs name one case less.
    assert scaled(2.0, 0.0) == jax.jit(lambda x: scaled(x, 0.0))(2.0) == 2.0


def test_a_function_for_arrays_of_jax_is_not_that_of_traced_values():
    @ft.singledispatch
    def scaled(x):
        return x

    before = ep.sweep(lambda p: scaled(p), LINE).values
    scaled.register(jax.Array, lambda x: 3 * x)
    # As above: it is another function for values than under any transformation.
    assert scaled(jnp.ones(())) == 3 and jax.jit(lambda x: scaled(x))(1.0) == 1
    assert np.array_equal(ep.sweep(lambda p: scaled(p), LINE).values, before)


def test_a_sweeper_sees_other_values_in_a_static_module():
    cfg = module(rate=1.0)
    space = {"c": ep.Static([cfg]), "x": LINE}
    run = ep.sweeper(lambda p: p["x"] * p["c"].rate, space)
    before = run(space).values
    cfg.rate = 3.0
    assert np.allclose(run(space).values, 3 * before)


def by_code(factor):
    return (lambda x: x) if factor == 1 else (lambda x: np.float32(3 * x))


def by_closure(factor):
    return lambda x: np.float32(factor * x)


def by_list(factor):
    box = [factor]
    return lambda x: np.float32(box[0] * x)


def by_class(factor):
    made = type("Made", (), {"rate": factor})
    return lambda x: np.float32(made.rate * x)


def by_globals(factor):
    scope = {"rate": factor, "np": np}
    exec(BY_GLOBALS, scope)
    return scope["call"]


BY_GLOBALS = compile("def call(x): return np.float32(rate * x)", "<test>", "exec")


def by_partial(factor):
    return ft.partial(lambda rate, x: np.float32(rate * x), factor)


def by_deque(factor):
    box = collections.deque([factor])
    return lambda x: np.float32(box[0] * x)


CALLBACKS = [by_deque, by_code, by_closure, by_list, by_class, by_globals, by_partial]


@pytest.mark.parametrize("make", CALLBACKS)
def test_a_program_that_calls_python_calls_its_own_function(make):
    struct = jax.ShapeDtypeStruct((), np.float32)
    for factor in (1.0, 3.0):
        call = make(factor)
        fn = lambda p, call=call: jax.pure_callback(  # noqa: E731
            call, struct, p, vmap_method="sequential"
        )
        values = ep.sweep(fn, LINE, progress=False).values
        assert np.allclose(values, factor * np.linspace(1, 2, 3))


def test_a_program_that_prints_passes_its_own_names():
    for name in "ab":

        def fn(p, name=name):
            jax.debug.callback(lambda **given: NAMES.append([*given]), **{name: p})
            return p

        NAMES.clear()
        ep.sweep(fn, LINE, progress=False)
        jax.effects_barrier()
        assert NAMES == 3 * [[name]]


@pytest.mark.parametrize("text", ["too large", "too small"])
def test_a_program_raises_its_own_error(text):
    with pytest.raises(ep.SweepError, match=text):
        ep.sweep(lambda p: eqx.error_if(p, p > 1.5, text), LINE)


NAMES = []


def test_a_program_that_calls_python_passes_its_own_names():
    struct = jax.ShapeDtypeStruct((), np.float32)
    call = lambda given: np.float32(1.0 if "a" in given else 3.0)  # noqa: E731
    for name, value in (("a", 1.0), ("b", 3.0)):
        fn = lambda p, name=name: jax.pure_callback(  # noqa: E731
            call, struct, {name: p}, vmap_method="sequential"
        )
        assert np.all(ep.sweep(fn, LINE, progress=False).values[:] == value)


@pytest.mark.parametrize("old, new", [(0.0, -0.0), (True, 1), ([1.0], [3.0])])
def test_a_sweeper_sees_other_static_values(old, new):
    config = {"x": old}

    def fn(p):
        x = p["c"]["x"]
        x = x[0] if isinstance(x, list) else x
        rate = (1.0 + x) * (2.0 if isinstance(x, bool) else 1.0)
        return jnp.copysign(p["x"], float(x)) * float(rate)

    space = {"c": ep.Static([config]), "x": LINE}
    run = ep.sweeper(fn, space)
    before = run(space).values
    config["x"] = new
    after = run(space).values
    assert np.array_equal(after, ep.sweep(fn, space).values)
    assert not np.array_equal(before, after)


def another_axis(space, config):
    space["x"] = ep.Linspace(2.0, 4.0, 3)


def another_end(space, config):
    vars(space["x"]).update(vars(ep.Linspace(2.0, 4.0, 3)))


def another_value(space, config):
    config["rate"] = 3.0


def another_item(space, config):
    config["rates"][0] = 3.0


def another_name(space, config):
    config["extra"] = config.pop("rate")


def another_field(space, config):
    config["record"]["rate"] = 3.0


@pytest.mark.parametrize("as_space", [dict, ep.Space])
@pytest.mark.parametrize(
    "change",
    [
        another_axis, another_end, another_value, another_item, another_name,
        another_field,
    ],
)  # fmt: skip
def test_a_sweeper_sees_changes_of_the_space_that_it_was_given_before(change, as_space):
    config = {"rate": 1.0, "rates": [1.0]}
    if change is another_field:
        config["record"] = np.zeros((), [("rate", float)])[()]

    def fn(p):
        record = p["c"].get("record", {"rate": 0.0})
        rates = p["c"].get("rate", 5.0), p["c"]["rates"][0], float(record["rate"])
        return p["x"] * rates[0] * (rates[1] + 2 * rates[2])

    tree = {"c": ep.Static([config]), "x": ep.Linspace(1.0, 2.0, 3)}
    space = tree if as_space is dict else ep.Space(tree)
    run = ep.sweeper(fn, space)
    before = [run(space).values for _ in range(4)]
    change(tree if as_space is dict else space.tree, config)
    after = run(space).values
    assert np.array_equal(after, ep.sweep(fn, space).values)
    assert not np.array_equal(before[-1], after)


def test_a_sweeper_traces_again_what_changes_when_it_is_traced():
    config = {"rate": 1.0}

    def fn(p):
        config["rate"] += 1.0
        return p["x"] * p["c"]["rate"]

    space = ep.Space({"c": ep.Static([config]), "x": LINE})
    run = ep.sweeper(fn, space)
    values = [run(space).values[0] for _ in range(4)]
    assert values == sorted(set(values))


def test_a_sweeper_sees_another_field_of_a_static_struct():
    record = np.ones((), [("rate", float)])[()]
    space = ep.Space({"c": ep.Static([record]), "x": LINE})
    run = ep.sweeper(lambda p: p["x"] * float(p["c"]["rate"]), space)
    before = [run(space).values for _ in range(4)]
    record["rate"] = 3.0
    assert np.allclose(run(space).values, 3 * before[-1])


def values_explored(fn, axis=None, **statics):
    space = {"x": ep.Uniform(1.0, 2.0) if axis is None else axis}
    space |= {name: ep.Static([value]) for name, value in statics.items()}
    cube = np.linspace(0.1, 0.9, 4)[:, None].repeat(len(space), 1)
    design = ep.search.Design(cube)
    call = ft.partial(ep.search.explore, fn, space, design, rounds=2, num=2)
    return lambda: call(progress=False).result.values


def best_explored(by):
    space = {"x": ep.Uniform(1.0, 2.0)}
    design, options = ep.search.Design([[0.5]]), {"rounds": 1, "num": 1, "by": by}
    call = ft.partial(ep.search.explore, wide, space, design, progress=False, **options)
    return lambda: call().best().value


def wide(p):
    return {"x": p["x"], "y": -p["x"]}


def only_x(p):
    return p["x"]


def read_in(box, axis):
    return ep.Mapped(lambda x: x * box[0], axis)


OTHERS = {
    "explore, the function": lambda box: values_explored(lambda p: p["x"] * box[0]),
    "explore, a static value": lambda box: values_explored(
        lambda p: p["x"] * p["box"][0], box=box
    ),
    "explore, an axis": lambda box: values_explored(
        only_x, read_in(box, ep.Uniform(1.0, 2.0))
    ),
    "explore, what is compared": lambda box: best_explored(lambda y: y["x"] * box[0]),
    "vmap_space": lambda box: ft.partial(ep.vmap_space, lambda x: x * box[0], LINE),
    "vmap_space in batches": lambda box: ft.partial(
        ep.vmap_space, lambda x: x * box[0], LINE, batch_size=2
    ),
    "vmap_space, an axis": lambda box: ft.partial(
        ep.vmap_space, lambda x: x, read_in(box, LINE)
    ),
    "sweeper, an axis": lambda box: ft.partial(
        ep.sweeper(only_x, {"x": read_in(box, LINE)}), {"x": read_in(box, LINE)}
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_searches_and_pure_functions_see_a_change(name):
    box = [1.0]
    call = OTHERS[name](box)
    number = lambda x: np.asarray(getattr(x, "values", x))  # noqa: E731
    before = [number(call()) for _ in range(3)]
    box[0] = 3.0
    assert np.allclose(number(call()), 3 * before[-1])


def test_a_new_loader_sees_another_global(monkeypatch):
    monkeypatch.setitem(globals(), "RATE", 1.0)

    def first():
        loader = ep.data.Loader(np.ones(4, np.float32), scaled, batch_size=2)
        return next(iter(loader.epoch(loader.init(jax.random.key(0)))))[0]

    assert first() == 1.0
    monkeypatch.setitem(globals(), "RATE", 3.0)
    assert first() == 3.0


def test_a_new_loader_sees_another_registered_class():
    Number = abc.ABCMeta("Number", (), {})
    config = types.SimpleNamespace()
    pipe = lambda x: x * (3.0 if isinstance(config, Number) else 1.0)  # noqa: E731

    def first():
        loader = ep.data.Loader(np.ones(4, np.float32), pipe, batch_size=2)
        return next(iter(loader.epoch(loader.init(jax.random.key(0)))))[0]

    assert first() == 1.0
    Number.register(types.SimpleNamespace)
    assert first() == 3.0


RATE = 1.0


def scaled(x):
    return x * RATE


PAIRS = [
    (1.0, jnp.nan),
    (np.ones(()), np.array(np.nan)),
    (jnp.ones(()), jnp.array(jnp.nan)),
    (decimal.Decimal(1), decimal.Decimal("nan")),  # it is not understood
]


@pytest.mark.parametrize("old, new", PAIRS)
def test_a_law_sees_another_global(monkeypatch, old, new):
    x = jnp.linspace(1.0, 2.0, 3)
    monkeypatch.setitem(globals(), "RATE", old)
    ept.check_function(rounded, x, only=("finite",))
    monkeypatch.setitem(globals(), "RATE", new)
    with pytest.raises(AssertionError, match="finite"):
        ept.check_function(rounded, x, only=("finite",))


def rounded(x):
    return x * float(RATE)


def test_a_law_sees_that_an_array_was_changed():
    rates = np.ones(2)

    def fn(x):
        rates[0] += 1
        return x

    with pytest.raises(AssertionError, match="rates"):
        ept.check_function(fn, jnp.ones(3))


def test_a_law_sees_that_an_object_was_replaced():
    box = [iter([])]

    def fn(x):
        box[0] = iter([])  # no reading understands it
        return x

    with pytest.raises(AssertionError, match="box"):
        ept.check_function(fn, jnp.ones(3))


def test_a_law_does_not_look_at_modules_of_libraries(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])

    def fn(x):
        sys.path.append("of no use")
        return x

    ept.check_function(fn, jnp.ones(3))
