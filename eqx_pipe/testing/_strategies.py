"""Strategies for arrays, keys and values of annotations.

The names of axes in annotations are bound: each stands for one size.
"""

import builtins
import collections.abc
import contextlib
import dataclasses
import functools as ft
import inspect
import math
import random
import re
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import beartype
import hypothesis
import hypothesis as hp
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from hypothesis.errors import InvalidArgument
from jax.typing import DTypeLike
from jaxtyping import Array, PRNGKeyArray, PyTree, jaxtyped

from .._errors import describe_value, message, nearest, quoted
from .._tree import leaves_with_names

Draw: TypeAlias = Callable[..., Any]
"""The function by which a composite strategy draws."""


def invalid(function: str, wrong: str, cure: str) -> InvalidArgument:
    """Return the error for an argument that a strategy does not support."""
    return InvalidArgument(message(f"testing.{function}", wrong, cure))


def check_strategy(
    function: str, argument: str, value: object, optional: bool = True
) -> None:
    """Raise unless `value` is a strategy, or `None` if `optional`."""
    if isinstance(value, st.SearchStrategy) or (value is None and optional):
        return
    wrong = f"`{argument}` is {describe_value(value)}, not a strategy."
    cure = f"For one fixed value give `{argument}=hypothesis.strategies.just(value)`."
    raise invalid(function, wrong, cure)


def check_elements(function: str, elements: object) -> None:
    """Raise unless `elements` is a strategy, `None`, or options for numbers."""
    if not isinstance(elements, Mapping):
        return check_strategy(function, "elements", elements)
    try:
        hnp.from_dtype(np.dtype(np.float32), **elements)
    except TypeError as error:  # `InvalidArgument` is one, too
        cure = "Give options of `hypothesis.extra.numpy.from_dtype`: `allow_nan=True`."
        raise invalid(function, f"`elements` is {elements}: {error}.", cure) from error


def check_struct(function: str, struct: PyTree) -> PyTree:
    """Return shapes and dtypes of structs or example arrays."""
    for name, leaf in leaves_with_names(struct) or [("", struct)]:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            wrong = f"`struct{name and '.'}{name}` is {describe_value(leaf)}."
            cure = "Give a pytree of `jax.ShapeDtypeStruct(shape, dtype)`, or of "
            cure += "arrays of these shapes and dtypes."
            raise invalid(function, wrong, cure)
    return jtu.tree_map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), struct)


Numbers: TypeAlias = st.SearchStrategy
"""A strategy for single numbers."""

Elements: TypeAlias = Numbers | Mapping[str, Any] | None
"""A strategy for single numbers, or options of `hypothesis.extra.numpy.from_dtype`."""

_PLAIN = [i / 8 for i in sorted(range(-32, 33), key=lambda i: (abs(i), i < 0))]

# In one list, since Hypothesis would not shrink from one strategy to another.
EIGHTHS = st.sampled_from(_PLAIN + 9 * [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5])
"""Small numbers that every dtype represents; the most revealing ones are frequent."""

COMPLEX = st.builds(complex, EIGHTHS, EIGHTHS)

_MOST_DRAWN = 32


@st.composite
def arrays(draw: Draw, struct: PyTree, *, elements: Elements = None) -> PyTree:
    """Draw a pytree of JAX arrays.

    **Arguments:**

    - `struct`: a pytree of `jax.ShapeDtypeStruct`, or of arrays, for their shapes and
        dtypes.
    - `elements`: a strategy for single numbers, or a dict of options of
        `hypothesis.extra.numpy.from_dtype`: `{}` draws all numbers of the dtype, with
        NaN, infinities, subnormal and huge numbers; `{"allow_nan": False}` or
        `{"min_value": -1e3, "max_value": 1e3}` restrict them. By default small numbers
        that every dtype represents exactly, such as eighths from -4 to 4, often 0, -0,
        1, -1 and halves. (Keyword only.)

    **Returns:** a strategy. Examples shrink to zeros.

    **Raises:** when drawn, `hypothesis.errors.InvalidArgument`, a `TypeError`, if
    `struct` has a leaf without shape and dtype, `elements` is not a strategy, or a
    number does not fit the dtype.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax
        >>> struct = {"x": jax.ShapeDtypeStruct((2, 3), "float32")}
        >>> @hypothesis.given(ept.arrays(struct))
        ... def test_negation(tree):
        ...     assert (-(-tree["x"]) == tree["x"]).all()
        >>> test_negation()
    """
    struct = check_struct("arrays", struct)
    check_elements("arrays", elements)
    leaves, structure = jtu.tree_flatten(struct)
    drawn = [draw(_array(leaf, elements)) for leaf in leaves]
    return jtu.tree_unflatten(structure, drawn)


def _array(
    struct: jax.ShapeDtypeStruct | Array, elements: Elements
) -> st.SearchStrategy[Array]:
    shape, dtype = tuple(struct.shape), struct.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        seeds = hnp.arrays(np.uint32, shape, elements=st.integers(0, 7))
        return seeds.map(lambda s: jax.vmap(jr.key)(s.ravel()).reshape(shape))
    drawn = numpy_array(shape, dtype, elements)
    return drawn.map(lambda v: jnp.asarray(v, dtype))


def numpy_array(
    shape: tuple[int, ...], dtype: DTypeLike, elements: Elements
) -> st.SearchStrategy[np.ndarray]:
    """Return a strategy of NumPy arrays, which may have 64 bits in any case."""
    # Hypothesis's NumPy strategy rejects numbers that do not fit, and supports few
    # floating-point dtypes. Those round anyway, so the widest is drawn.
    wide = dtype
    for kind, widest in ((jnp.floating, float), (jnp.complexfloating, complex)):
        wide = widest if jnp.issubdtype(dtype, kind) else wide
    # Small arrays are drawn number by number: mostly equal numbers reveal too little.
    fill = st.nothing() if math.prod(shape) <= _MOST_DRAWN else None
    drawn = hnp.arrays(wide, shape, elements=numbers_of(dtype, elements), fill=fill)
    return drawn.map(lambda v: v.astype(dtype))


def numbers_of(dtype: DTypeLike, elements: Elements) -> Numbers:
    """Return a strategy of numbers of a dtype."""
    if elements is None:
        return _usual(dtype)
    if not isinstance(elements, Mapping):
        return elements
    # Hypothesis does not know bfloat16 and float8; wider numbers are rounded.
    is_small = jnp.issubdtype(dtype, jnp.floating) and np.dtype(dtype).kind != "f"
    return hnp.from_dtype(np.dtype(np.float32 if is_small else dtype), **elements)


def _usual(dtype: DTypeLike) -> Numbers:
    """Return a strategy of small numbers that a dtype represents exactly."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return COMPLEX if jnp.issubdtype(dtype, jnp.complexfloating) else EIGHTHS
    if dtype == jnp.bool_:
        return st.booleans()
    info = jnp.iinfo(dtype)
    return st.integers(max(-4, int(info.min)), min(4, int(info.max)))


KEYS = st.integers(0, 2**32 - 1).map(jr.key)
"""PRNG keys; they shrink to seed 0."""

SIZES = (1, 3, 2, 5, 0)
"""One for broadcasting, three for channels, small primes, and no elements at all."""

_ALL = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
"""Tried at random if the drawn sizes do not satisfy the symbolic axes."""

_TRIED = 5000

STRUCTURES = (0, (0, 0), {"a": 0, "b": 0}, [(0,), {"c": 0}])
"""Pytrees, the simplest first."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Dim:
    """One axis, or several, of a shape string.

    `kind` is `"fixed"`, `"named"`, `"symbolic"` or `"any"`; `text` is the size, the
    name or the expression.
    """

    kind: str
    text: str = ""
    many: bool = False
    broadcasts: bool = False
    by_leaf: bool = False


def parse(shape: str) -> list[Dim]:
    """Return the axes of a shape string that jaxtyping has accepted."""
    return [_parse_one(token) for token in shape.split()]


def _parse_one(token: str) -> Dim:
    # Modifiers, an optional documentation name (`rows=3`), and the size.
    match = re.fullmatch(r"([#*_?]*)(?:\w+=(?!=))?(.*)", token)
    marks, text = match.groups() if match else ("", token)
    many = "*" in marks or token == "..."
    if token == "..." or "_" in marks:
        kind = "any"
    elif text.isidentifier():
        kind = "named"
    else:
        kind = "fixed" if text.isdecimal() else "symbolic"
    return Dim(kind, text, many, broadcasts="#" in marks, by_leaf="?" in marks)


class Binding:
    """The values of names in one call: sizes, shapes, dtypes, tree structures.

    A new name gets a drawn value. `values` are the arguments drawn so far, for the
    `{...}` of symbolic axes.
    """

    def __init__(
        self,
        draw: Callable[..., Any],
        function: str,
        elements: Elements,
        dtypes: Collection[DTypeLike],
        sizes: Collection[int],
    ):
        check_elements(function, elements)
        self.draw, self.elements = draw, elements
        is_list = isinstance(sizes, tuple | list | range) and len(sizes) > 0
        if not is_list or not all(isinstance(n, int) and n >= 0 for n in sizes):
            wrong = f"`sizes` is {describe_value(sizes)}."
            raise invalid(function, wrong, "Give a tuple of sizes: `sizes=(0, 1, 8)`.")
        self._sizes = tuple(sizes)
        self.dtypes_asked = _names_of(function, dtypes)
        self.values: dict[str, Any] = {}
        self.sizes: defaultdict[Any, int] = defaultdict(self._a_size)
        self.shapes: defaultdict[Any, tuple[int, ...]] = defaultdict(self._a_shape)
        self.structures: defaultdict[str, Any] = defaultdict(
            lambda: jtu.tree_structure(self.choose(STRUCTURES))
        )
        self.dtypes: dict[Any, str] = {}
        self.leaf: tuple[Any, ...] = ()

    def choose(self, among: Sequence[T]) -> T:
        """Draw one of several values; the first is the simplest."""
        return self.draw(st.sampled_from(among))

    def shape(self, dims: list[Dim]) -> tuple[int, ...]:
        """Return a shape that satisfies a shape string."""
        return tuple(size for dim in dims for size in self._sizes_of(dim))

    def _a_size(self) -> int:
        return self.choose(self._sizes)

    def _a_shape(self) -> tuple[int, ...]:
        return tuple(self._a_size() for _ in range(self.choose((0, 1, 2))))

    def _sizes_of(self, dim: Dim) -> tuple[int, ...]:
        name = (*self.leaf, dim.text) if dim.by_leaf else dim.text
        match dim.kind:
            case "any":
                whole = self._a_shape() if dim.many else (self._a_size(),)
            case "fixed":
                whole = (int(dim.text),)
            case "symbolic":
                whole = (self._filled(dim.text),)
            case _:
                whole = self.shapes[name] if dim.many else (self.sizes[name],)
        if not dim.broadcasts:
            return whole
        dropped = self.choose(range(len(whole) + 1)) if dim.many else 0
        return tuple(1 if self.choose((False, True)) else n for n in whole[dropped:])

    def solve(self, shapes: str) -> None:
        """Draw the sizes of names so that all symbolic axes can be computed.

        Values in braces are not known yet; axes with them are computed later.
        """
        symbolic = [dim.text for dim in parse(shapes) if dim.kind == "symbolic"]
        texts = [text for text in symbolic if "{" not in text]
        sizes = defaultdict(self._a_size, self.sizes)
        for least in (1, 0):
            wider = random.Random(0)
            for _ in range(_TRIED):
                if all(_evaluate(text, sizes) >= least for text in texts):
                    self.sizes.update(sizes)
                    return
                sizes = defaultdict(ft.partial(wider.choice, _ALL), self.sizes)
        bound = f" with {dict(self.sizes)}" if self.sizes else ""
        wrong = f"no sizes up to {_ALL[-1]} give {quoted(texts)} at least 0{bound}."
        cure = "Change the annotation, or give the arguments by strategies of their "
        cure += "own."
        raise invalid("from_jaxtyping", wrong, cure)

    def _filled(self, text: str) -> int:
        """Return the size of a symbolic axis, with arguments in place of braces."""
        with _computing(text):  # as jaxtyping does
            filled = eval(f"f{text!r}", {**self.values})
        size = _evaluate(filled, self.sizes)
        hypothesis.assume(size >= 0)
        return size

    def match(self, text: str, shape: tuple[int, ...], where: str) -> None:
        """Bind names to the sizes of an array; raise if its shape differs."""
        dims = parse(text)
        sizes: list[Any] = list(shape)
        for i in (i for i, dim in enumerate(dims) if dim.many):  # one at most
            end = len(shape) - (len(dims) - i - 1)
            sizes[i : max(i, end)] = [shape[i:end]]
        if len(sizes) != len(dims) or not all(map(self._fits, dims, sizes)):
            sizes_of = {**self.sizes, **self.shapes}
            bound = f" with {sizes_of}" if sizes_of else ""
            wrong = f"{where} is an array of shape {shape}, which its annotation "
            wrong += f"`{text.strip()}` rules out{bound}."
            cure = "Give a strategy whose values satisfy the annotation."
            raise invalid("arguments", wrong, cure)

    def _fits(self, dim: Dim, size: Any) -> bool:
        """Bind the name of one axis, or of several; return whether it matches."""
        if dim.broadcasts and (dim.many or size == 1):
            return True
        if dim.kind == "named":
            sizes_of: dict[Any, Any] = self.shapes if dim.many else self.sizes
            return sizes_of.setdefault(dim.text, size) == size
        return dim.kind != "fixed" or int(dim.text) == size


def _evaluate(text: str, sizes: defaultdict[Any, int]) -> int:
    """Return the size of a symbolic axis, or -1 if it is not an integer."""
    with _computing(text):
        code = compile(text, "<axis>", "eval")
        # In `min(a, b)`, `min` is not the name of an axis.
        names = [name for name in code.co_names if not hasattr(builtins, name)]
        size = eval(code, {}, {name: sizes[name] for name in names})
    return size if isinstance(size, int) else -1


@contextlib.contextmanager
def _computing(text: str) -> Iterator[None]:
    """Add the axis to errors that its expression raises."""
    try:
        yield
    except Exception as error:
        wrong = f"the axis `{text}` cannot be computed: {type(error).__name__}: "
        wrong += f"{error}."
        cure = "Its names are axes, and in braces other arguments: `n+1`, `{n}`."
        raise invalid("from_jaxtyping", wrong, cure) from error


def _names_of(function: str, dtypes: Any) -> list[str]:
    """Return the names of dtypes; raise if one is not a dtype."""
    if isinstance(dtypes, tuple | list):
        with contextlib.suppress(TypeError):
            return [jnp.dtype(dtype).name for dtype in dtypes]
    wrong = f"`dtypes` is {describe_value(dtypes)}."
    cure = 'Give a tuple of dtypes: `dtypes=("float32", "int32")`.'
    raise invalid(function, wrong, cure)


BARE = (jax.Array, np.ndarray)
"""Types of arrays without a shape."""

# Examples shrink to the first.
_USUAL = ("float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64")

_MORE = ("int8", "int16", "uint16", "uint32")

_WIDE = ("float64", "int64", "uint64", "complex128")


def value_for(annotation: object, binding: Binding) -> Any:
    """Return a value that satisfies an annotation, with names bound as in `binding`."""
    if is_array_annotation(annotation):
        return array_for(annotation, binding)
    if annotation == PRNGKeyArray:
        return binding.draw(KEYS)
    if isinstance(annotation, type) and issubclass(annotation, PyTree):
        return _tree_for(annotation, binding)
    if annotation is Any:
        return bare_array(jax.Array, binding)
    if annotation in (bool, int, float, complex):
        return binding.draw(scalar_of(annotation, binding))
    if annotation in BARE:
        return bare_array(annotation, binding)
    return _special(annotation, binding)


def _special(annotation: object, binding: Binding) -> Any:
    """Return a value for one of the special forms of `typing`."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _one_of(args, binding)
    if origin is typing.Annotated:
        return value_for(args[0], binding)
    kind = origin or annotation
    if args and isinstance(kind, type) and issubclass(kind, collections.abc.Iterable):
        return _container_for(kind, args, binding)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _instance_of(typing.cast(type, kind), binding)
    return _from_type(annotation, binding)


def annotations_of(
    fn: Callable[..., Any], asked: Mapping[str, object] = types.MappingProxyType({})
) -> dict[str, Any]:
    """Return the annotation of each argument that needs a value.

    `asked` has strategies by name, or `...` to draw an argument with a default.
    """
    cure = "Give a function with annotations."
    if not callable(fn):
        wrong = f"`fn` is {describe_value(fn)}, which cannot be called."
        raise invalid("arguments", wrong, cure)
    parameters = inspect.signature(fn, eval_str=True).parameters.values()
    hints = {}
    for p in parameters:
        many = p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if many or not (p.name in asked or p.default is p.empty):
            continue
        if p.annotation is p.empty and asked.get(p.name, ...) is ...:
            wrong = f"`{p.name}` of `{getattr(fn, '__name__', 'fn')}` has no "
            wrong += "annotation."
            cure = f"Annotate it, or give a strategy: `arguments(fn, {p.name}=...)`."
            raise invalid("arguments", wrong, cure)
        hints[p.name] = Any if p.annotation is p.empty else p.annotation
    return hints


def _instance_of(cls: type, binding: Binding) -> Any:
    """Return an instance of an annotated class, with its constructor's defaults."""
    if inspect.isabstract(cls) or getattr(cls, "__abstractvars__", ()):
        return _from_type(cls, binding)  # draws from a subclass
    hints = annotations_of(cls).items()
    values = {name: value_for(hint, binding) for name, hint in hints}
    return cls(**values)


def _from_type(annotation: Any, binding: Binding) -> Any:
    """Draw from the strategy that Hypothesis has for another type."""
    try:
        # Functions that Hypothesis makes draw when called, which cannot be traced.
        if Callable in (typing.get_origin(annotation), annotation):
            raise InvalidArgument("functions are not drawn.")
        return binding.draw(st.from_type(annotation))
    # This calls constructors, which may raise any error.
    except Exception as error:
        wrong = f"no value can be made for {annotation!r}: {error}"
        cure = "Give it by a strategy of its own: `arguments(fn, name=strategy)`; or "
        cure += "make the type known by `hypothesis.strategies.register_type_strategy`."
        raise invalid("from_jaxtyping", wrong, cure) from error


def _one_of(members: tuple[Any, ...], binding: Binding) -> Any:
    """Return a value of a supported member of a union."""
    # None is the simplest.
    ordered = sorted(members, key=lambda part: part is not type(None))
    chosen = binding.choose(range(len(ordered)))
    error: InvalidArgument | None = None
    for part in [*ordered[chosen:], *ordered[:chosen]]:
        try:
            return value_for(part, binding)
        except InvalidArgument as refused:
            error = error or refused
    assert error is not None
    raise error


def _container_for(kind: type, args: tuple[Any, ...], binding: Binding) -> Any:
    """Return a container of one or two values."""
    abc, members = collections.abc, [part for part in args if part is not ...]
    if kind is tuple and members == list(args):
        return tuple(value_for(part, binding) for part in args)
    count = range(binding.choose((1, 2)))
    values: list[Any] = [[value_for(m, binding) for m in members] for _ in count]
    made: type = dict
    if not issubclass(kind, abc.Mapping):
        values = [value for (value,) in values]
        made = set if issubclass(kind, abc.Set) else list
    return (made if inspect.isabstract(kind) else typing.cast(Any, kind))(values)


def _tree_for(annotation: object, binding: Binding) -> Any:
    leaf = getattr(annotation, "leaftype", Any)
    text = getattr(annotation, "structure", None)
    shape = _skeleton(text, binding)
    leaf_zeros, structure = jtu.tree_flatten(shape)
    leaves = []
    outer = binding.leaf
    for i in range(len(leaf_zeros)):
        binding.leaf = (*outer, text, i) if text else outer
        leaves.append(value_for(leaf, binding))
    binding.leaf = outer
    return jtu.tree_unflatten(structure, leaves)


def _skeleton(text: str | None, binding: Binding) -> Any:
    """Return zeros with a structure such as `"T"`, `"S T"` or `"T ..."`."""
    # Pytrees without a name have the same structure, as bare arrays have the same
    # shape.
    whole: Any = 0
    for name in (text or "PyTree").split():
        if name == "...":
            inner = [binding.choose(STRUCTURES) for _ in jtu.tree_leaves(whole)]
            whole = jtu.tree_unflatten(jtu.tree_structure(whole), inner)
            continue
        structure = binding.structures[name]
        part = jtu.tree_unflatten(structure, [0] * structure.num_leaves)
        whole = jtu.tree_map(lambda _, part=part: part, whole)
    return whole


def array_for(annotation: Any, binding: Binding) -> Any:
    """Return an array that satisfies an annotation such as `Float[Array, "n"]`."""
    kind = annotation.array_type
    dtype = _dtype_for(annotation, binding)
    shape = binding.shape(parse(annotation.dim_str))
    key = dtype == "prng_key"
    if _is_numpy(kind) and not key:
        return binding.draw(numpy_array(shape, np.dtype(dtype), binding.elements))
    struct = jax.ShapeDtypeStruct(shape, jax.random.key(0).dtype if key else dtype)
    if kind is Any or (isinstance(kind, type) and issubclass(jax.Array, kind)):
        return binding.draw(arrays(struct, elements=binding.elements))
    wrong = f"`{annotation.__name__}` asks for arrays of the type {kind}."
    cure = "Only JAX and NumPy arrays can be drawn; give a strategy for others."
    raise invalid("from_jaxtyping", wrong, cure)


def _dtype_for(annotation: Any, binding: Binding) -> str:
    """Return a dtype, the same for all annotations that allow the same dtypes."""
    group = _group(annotation)
    if group not in binding.dtypes:
        asked = [n for n in binding.dtypes_asked if _allows(annotation.dtypes, n)]
        binding.dtypes[group] = binding.choose(asked or _choices(annotation))
    return binding.dtypes[group]


def _group(annotation: Any) -> tuple[str, bool]:
    return str(annotation.dtypes), _is_numpy(annotation.array_type)


def bind_dtype(annotation: Any, binding: Binding, dtype: DTypeLike) -> None:
    """Bind an annotation's dtypes to the dtype of an array."""
    name = "prng_key" if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key) else dtype
    if _allows(annotation.dtypes, str(name)):
        binding.dtypes.setdefault(_group(annotation), str(name))


def _choices(annotation: Any) -> list[str]:
    x64 = jax.config.jax_enable_x64
    wide = _WIDE if x64 or _is_numpy(annotation.array_type) else ()
    # Rare dtypes are used only if no common dtype is allowed, and keys only if nothing
    # else is. NumPy always has 64-bit dtypes; JAX has them only with `jax_enable_x64`.
    for names in (_USUAL + _WIDE if x64 else _USUAL, wide + _MORE, ("prng_key",)):
        allowed = [name for name in names if _allows(annotation.dtypes, name)]
        if allowed:
            return allowed
    wrong = f"`{annotation.__name__}` allows no dtype that is known here."
    cure = 'Set `jax.config.update("jax_enable_x64", True)` if it asks for 64 bits; '
    cure += "else give the argument by a strategy of its own."
    raise invalid("from_jaxtyping", wrong, cure)


def _allows(dtypes: Any, name: str) -> bool:
    if not isinstance(dtypes, tuple | list):
        return name != "prng_key"  # `Shaped`: any dtype
    return any(re.fullmatch(pattern, name) for pattern in dtypes)


def _is_numpy(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, np.ndarray)


def bare_array(kind: type, binding: Binding) -> Any:
    """Return an array for a bare annotation; all have the same shape."""
    struct = jax.ShapeDtypeStruct(binding.shape(parse("*Array")), "float32")
    drawn = binding.draw(arrays(struct, elements=binding.elements))
    return np.asarray(drawn) if kind is np.ndarray else drawn


def scalar_of(kind: type, binding: Binding) -> Numbers:
    """Return a strategy of Python numbers."""
    fixed = {bool: st.booleans(), int: st.integers(-8, 8), complex: COMPLEX}
    if kind in fixed:
        return fixed[kind]
    return numbers_of(np.float64, binding.elements).map(float)


def is_array_annotation(annotation: object) -> bool:
    """Return whether an annotation is one of jaxtyping's, of a single array."""
    return all(hasattr(annotation, n) for n in ("dim_str", "dtypes", "array_type"))


# By default beartype checks only one random item of a list.
_EACH_ITEM = beartype.BeartypeConf(strategy=beartype.BeartypeStrategy.On)
_CHECKER = beartype.beartype(conf=_EACH_ITEM)


@st.composite
def from_jaxtyping(
    draw: Draw,
    annotation: object,
    *,
    elements: Elements = None,
    dtypes: Collection[DTypeLike] = (),
    sizes: Collection[int] = SIZES,
) -> Any:
    """Draw a value that satisfies an annotation.

    All of jaxtyping's syntax is supported: dtypes and groups of dtypes; axes that are
    fixed (`3`, `rows=3`), named (`n`), variadic (`*batch`, `...`), broadcastable
    (`#n`), anonymous (`_`), symbolic (`n+1`) and by tree path (`?n`); scalars (`""`);
    pytrees with named structures; keys; unions and containers. A dataclass or an
    Equinox module is constructed from drawn arguments, and its defaults are kept;
    `hypothesis.strategies.from_type` draws other types. A name stands for the same size
    everywhere in the annotation.

    **Arguments:**

    - `annotation`: a type annotation, such as `Float[Array, "n 3"]`.
    - `elements`: numbers of arrays, and Python floats, as in `arrays`. By default small
        numbers that every dtype represents exactly. (Keyword only.)
    - `dtypes`: the dtypes to draw, if an annotation allows them. By default the common
        dtypes that it allows. (Keyword only.)
    - `sizes`: the sizes of axes that the annotation leaves free. Each combination of
        dtypes and sizes compiles again, so give few. (Keyword only.)

    **Returns:** a strategy. Annotations that allow the same dtypes get the same dtype.
    Examples shrink to zeros with axes of size one, or of the smallest allowed sizes.

    **Raises:** when drawn, `hypothesis.errors.InvalidArgument`, a `TypeError`, if no
    value satisfies the annotation, or an option is invalid.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis
        >>> from jaxtyping import Array, Float
        >>> @hypothesis.given(ept.from_jaxtyping(Float[Array, "n n+1"]))
        ... def test_shape(matrix):
        ...     assert matrix.shape[1] == matrix.shape[0] + 1
        >>> test_shape()
    """
    binding = Binding(draw, "from_jaxtyping", elements, dtypes, sizes)
    binding.solve(_text_of(annotation))
    return value_for(annotation, binding)


@st.composite
def arguments(
    draw: Draw,
    fn: Callable[..., Any],
    *,
    elements: Elements = None,
    dtypes: Collection[DTypeLike] = (),
    sizes: Collection[int] = SIZES,
    **overrides: "st.SearchStrategy | types.EllipsisType",
) -> dict[str, Any]:
    """Draw arguments that satisfy a function's annotations, as a dict by name.

    Call the function with `fn(**arguments)`. A name stands for the same size, shape or
    structure in all arguments. An argument with a default value keeps it. All arrays
    with the bare annotation `Array` are float32 and have the same shape. `*args` and
    `**kwargs` stay empty.

    **Arguments:**

    - `fn`: a function, a method, or a callable module, whose annotated fields also bind
        names of axes.
    - `elements`, `dtypes`, `sizes`: as in `from_jaxtyping`. (Keyword only.)
    - `overrides`: strategies for single arguments, by name. The sizes of their values
        bind the names of axes. If `...` is passed for an argument with a default value,
        it is drawn from its annotation. (Keyword only.)

    **Returns:** a strategy of dicts.

    **Raises:** when drawn, `hypothesis.errors.InvalidArgument`, a `TypeError`, if an
    override is not a strategy, or no value satisfies an annotation.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis
        >>> from jaxtyping import Array, Float
        >>> def scale(x: Float[Array, "*batch n"], by: Float[Array, " n"]):
        ...     return x * by
        >>> @hypothesis.given(ept.arguments(scale))
        ... def test_scale(arguments):
        ...     assert scale(**arguments).shape == arguments["x"].shape
        >>> test_scale()
    """
    binding = Binding(draw, "arguments", elements, dtypes, sizes)
    hints = annotations_of(fn, overrides)
    values = {}
    for name, strategy in overrides.items():
        if name not in hints:
            wrong = f"`fn` has no argument `{name}`."
            raise invalid("arguments", wrong, nearest(name, hints))
        if strategy is not ...:
            check_strategy("arguments", name, strategy, optional=False)
            values[name] = draw(strategy)
    around: dict[str, Any] = dict(zip(("self",), _plain_function(fn)[1], strict=False))
    # Arguments whose axes depend on the values of other arguments come last.
    waiting = [name for name in hints if name not in values]
    waiting.sort(key=lambda name: "{" in _text_of(hints[name]))

    for owner in around.values():
        _bind_fields(binding, owner)
    for name, value in values.items():
        _bind(binding, hints[name], value, f"`{name}`")
    binding.solve(" ".join(_text_of(hints[name]) for name in waiting))
    for name in waiting:
        binding.values = {**around, **values}
        values[name] = value_for(hints[name], binding)
    return values


def given_typed(
    fn: Callable[..., Any] | None = None, **options: Any
) -> Callable[..., Any]:
    """Make a property test of an annotated function. Can be used as a decorator.

    The test calls `fn` with `arguments(fn)`; jaxtyping and beartype check that its
    return value satisfies the annotation, with names bound as in the arguments, and in
    the annotated fields of a module. An
    error that `fn` raises also fails the test, so `fn` may contain `assert`;
    `hypothesis.assume` skips unsuitable arguments. The test has no deadline unless you
    set one with `@hypothesis.settings`.

    **Arguments:**

    - `fn`: an annotated function.
    - `options`: `elements`, `dtypes`, `sizes`, and strategies for single arguments, as
        in `arguments`. (Keyword only.)

    **Returns:** a test without arguments.

    **Raises:** the test raises `jaxtyping.TypeCheckError` if the return value does not
    satisfy the annotation. A coroutine function raises
    `hypothesis.errors.InvalidArgument` at once.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> from jaxtyping import Array, Float
        >>> def steps(x: Float[Array, " n"]) -> Float[Array, " n"]:
        ...     return jnp.diff(x)
        >>> test_steps = ept.given_typed(steps)
        >>> test_steps()
        Traceback (most recent call last):
            ...
        jaxtyping.TypeCheckError: Type-check error whilst checking the return value ...
    """
    if fn is None:
        return ft.partial(given_typed, **options)
    if inspect.iscoroutinefunction(fn):
        wrong = f"`fn` is {describe_value(fn)}, a coroutine, which a call does not run."
        cure = "Wrap it: `lambda x: asyncio.run(fn(x))`, in a function with "
        cure += "annotations."
        raise invalid("given_typed", wrong, cure)
    function, owner = _plain_function(fn)
    fields = _annotated_fields(*owner) if owner else {}
    checked = jaxtyped(_with_fields(function, fields), typechecker=_CHECKER)
    values = {"fields_": tuple(v for _, v in fields.values())} if fields else {}

    @hp.given(arguments=arguments(fn, **options))
    def test(arguments: dict[str, Any]) -> None:
        __tracebackhide__ = True
        checked(*owner, **arguments, **values)

    # pytest uses these to name the test, and to show its source.
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        if hasattr(fn, name):
            setattr(test, name, getattr(fn, name))
    # Compilation may take longer than the default deadline. Users may still set one.
    settings = hp.settings(deadline=None)
    test._hypothesis_internal_use_settings = settings  # type: ignore
    return test


def _plain_function(fn: Callable[..., Any]) -> tuple[Callable[..., Any], tuple]:
    """Return the function of a method or module, and the object that it is bound to."""
    method: Any = fn if hasattr(fn, "__self__") else getattr(fn, "__call__", None)  # noqa: B004
    # Not `types.MethodType`: Equinox's bound methods have another type.
    inner = getattr(method, "__func__", None)
    return (fn, ()) if inner is None else (inspect.unwrap(inner), (method.__self__,))


def _text_of(annotation: object) -> str:
    """Return all shape strings of an annotation, joined."""
    shape = getattr(annotation, "dim_str", "") or ""
    leaf = getattr(annotation, "leaftype", None)
    inner = [*typing.get_args(annotation), *([leaf] if leaf is not None else [])]
    parts = [shape, *(_text_of(part) for part in inner if part is not annotation)]
    return " ".join(part for part in parts if part)


def _bind(binding: Binding, annotation: Any, value: PyTree, where: str) -> None:
    """Bind names to the sizes of a value."""
    if is_array_annotation(annotation) and hasattr(value, "shape"):
        binding.match(annotation.dim_str, tuple(value.shape), where)
        bind_dtype(annotation, binding, value.dtype)
    elif isinstance(annotation, type) and issubclass(annotation, PyTree):
        name = getattr(annotation, "structure", None)
        if name and name.isidentifier():
            binding.structures[name] = jtu.tree_structure(value)
        for leaf in jtu.tree_leaves(value):
            _bind(binding, getattr(annotation, "leaftype", None), leaf, where)
    elif annotation in BARE and hasattr(value, "shape"):
        # All arrays without a shape have the shape of the first.
        binding.shapes.setdefault("Array", tuple(value.shape))


def _annotated_fields(module: object) -> dict[str, tuple[Any, Any]]:
    """Return the annotation and value of each field of a module that is an array."""
    if not dataclasses.is_dataclass(module) or isinstance(module, type):
        return {}
    hints = typing.get_type_hints(type(module), include_extras=True)
    values = {
        field.name: (hints.get(field.name), getattr(module, field.name, None))
        for field in dataclasses.fields(module)
    }
    return {name: pair for name, pair in values.items() if is_array_annotation(pair[0])}


def _bind_fields(binding: Binding, module: object) -> None:
    """Bind names to the sizes of a module's annotated fields.

    If two fields disagree, the first counts.
    """
    for name, (hint, value) in _annotated_fields(module).items():
        with contextlib.suppress(InvalidArgument):
            _bind(binding, hint, value, f"`self.{name}`")


def _with_fields(
    function: Callable[..., Any], fields: dict[str, tuple[Any, Any]]
) -> Callable[..., Any]:
    """Return a method that also takes fields, whose annotations are checked with it.

    jaxtyping binds names of axes in one call, and does not look into `self`.
    """
    if not fields:
        return function

    @ft.wraps(function)
    def method(*args: Any, fields_: tuple[Any, ...], **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    signature = inspect.signature(function, eval_str=True)
    hints = tuple(hint for hint, _ in fields.values())
    kind = inspect.Parameter.KEYWORD_ONLY
    extra = inspect.Parameter("fields_", kind, annotation=tuple[hints])
    parameters = sorted([*signature.parameters.values(), extra], key=lambda p: p.kind)
    method.__signature__ = signature.replace(parameters=parameters)  # type: ignore
    return method
