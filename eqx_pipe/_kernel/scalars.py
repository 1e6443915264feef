"""From the jaxpr of one point to a program whose values are all scalars.

An array is a NumPy array of `Scalar`s, so reshaping, slicing and joining arrays leave
no trace in the program. It consists of elementwise `Operation`s, `Loop`s, `Choice`s
and `Table`s, the arrays of a `scan`.
"""

import functools as ft
import itertools as it
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._captured import is_library
from .._errors import value_error
from .._jaxprs import (
    Equation,
    as_function,
    is_literal,
    kind,
    open_jaxpr,
    remade,
    scan_counts,
    sub_jaxprs,
    trace,
)
from .elementwise import ELEMENTWISE, PARAMETERS, known_result
from .llvm import DTYPES, MOST_LINES

if TYPE_CHECKING:
    Scalars: TypeAlias = Any  # elements of NumPy's object arrays have no type
else:
    Scalars: TypeAlias = np.ndarray
"""An array of `Scalar`s, or of the `Words` of PRNG keys."""

_MOST_NUMBERS = 4096
_MOST_UNROLLED = 4


class Scalar:
    """A number of one point."""

    __slots__ = ("dtype", "known")

    def __init__(self, dtype: Any, known: np.generic | None = None):
        self.dtype, self.known = np.dtype(dtype), known


class Words:
    """The words of a PRNG key, which is one element of an array."""

    __slots__ = ("words",)

    def __init__(self, words: Sequence[Scalar]):
        self.words = tuple(words)


class Operation(NamedTuple):
    """An elementwise primitive."""

    primitive: str
    params: dict[str, Any]
    inputs: Sequence[Scalar]
    output: Scalar


class Block(NamedTuple):
    """Steps, and the scalars that are used after them."""

    steps: list[Any]
    outputs: list[Scalar]


class Loop(NamedTuple):
    """A `while_loop`: the block `test` has one output, and `body` the next carry."""

    init: list[Scalar]
    carry: list[Scalar]
    test: Block
    body: Block
    outputs: list[Scalar]


class Choice(NamedTuple):
    """A `cond` or `switch`."""

    which: Scalar
    branches: list[Block]
    outputs: list[Scalar]


class Table(NamedTuple):
    """Numbers in memory, which are found by an index."""

    dtype: np.dtype
    size: int
    identity: object


class Store(NamedTuple):
    """Write a number into a table."""

    table: Table
    place: Scalar
    value: Scalar


class Load(NamedTuple):
    """Read a number from a table."""

    table: Table
    place: Scalar
    output: Scalar


class Program(NamedTuple):
    """The scalars of each operand, and the block that computes those of the outputs."""

    operands: list[list[Scalar]]
    block: Block


def program_of(jaxpr: Any, consts: Sequence[Any]) -> Program:
    """Return the program of a jaxpr of one point.

    `consts` replace the arrays that it closes over. They, and the inputs, become
    operands, except for NumPy arrays of integers, which may be indices.
    """
    writer = Writer()
    inner = open_jaxpr(jaxpr)[0]
    operands: list[list[Scalar]] = []

    def operand(aval: Any) -> Scalars:
        array = writer.fresh(aval)
        operands.append(flat([array]))
        return array

    known = [known_array(c) if isinstance(c, np.ndarray) else None for c in consts]
    filled = [
        operand(v.aval) if k is None else k
        for v, k in zip(inner.constvars, known, strict=True)
    ]
    inputs = [operand(v.aval) for v in inner.invars]
    outputs = writer.run(jaxpr, inputs, filled)
    return Program(operands, Block(writer.steps, flat(outputs)))


def known_array(value: Any) -> Scalars:
    """Return an array of known numbers."""
    value = np.asarray(value)
    return filled(value.shape, lambda i: Scalar(value.dtype, value[i]))


def filled(shape: Sequence[int], of: Callable[[tuple[int, ...]], Any]) -> Scalars:
    """Return an array whose elements are a function of their position."""
    out = np.empty(tuple(shape), object)
    for index in np.ndindex(*shape):
        out[index] = of(index)
    return out


def single(element: Any) -> Scalars:
    """Return an array without axes."""
    return filled((), lambda _: element)


def flat(arrays: Iterable[Scalars]) -> list[Scalar]:
    """Return the scalars of arrays in order, and those of keys word by word."""
    elements = it.chain.from_iterable(a.flat for a in arrays)
    return [s for e in elements for s in (e.words if isinstance(e, Words) else [e])]


def like(arrays: Iterable[Scalars], scalars: Iterable[Scalar]) -> list[Scalars]:
    """Return arrays like those given, of other scalars: the inverse of `flat`."""
    rest = iter(scalars)

    def other(element: Any) -> Any:
        if isinstance(element, Words):
            return Words([next(rest) for _ in element.words])
        return next(rest)

    return [filled(a.shape, lambda i, a=a: other(a[i])) for a in arrays]


Rule: TypeAlias = Callable[..., Sequence[Scalars]]
RULES: dict[str, Rule] = {}
"""Functions of a `Writer`, an equation and its inputs, for each primitive on arrays."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of primitives."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


class Writer:
    """The steps of a program, as they are written."""

    def __init__(self):
        self.steps: list[Any] = []
        self._num_steps = 0
        self._eqns: list[Equation] = []  # the innermost is the last

    def refuse(self, wrong: str, cure: str) -> ValueError:
        """Return an error that names the primitive and the line of the user's code."""
        name = self._eqns[-1].primitive.name if self._eqns else "fn"
        # A jaxpr that JAX has kept from an earlier trace knows no line of this one.
        line = next(filter(None, map(_line_of, reversed(self._eqns))), "")
        return value_error("kernel", f"`{name}`{line} {wrong}.", cure)

    def run(
        self, jaxpr: Any, inputs: Sequence[Scalars], consts: Sequence[Any] | None = None
    ) -> list[Scalars]:
        """Write the equations of a jaxpr, and return its outputs."""
        inner, closed_over = open_jaxpr(jaxpr)
        if consts is None:
            consts = [known_array(c) for c in closed_over]
        values = dict(zip(inner.constvars, consts, strict=True))
        values |= zip(inner.invars, inputs, strict=True)

        def read(atom: Any) -> Scalars:
            if is_literal(atom):
                return known_array(np.asarray(atom.val, atom.aval.dtype))
            return values[atom]

        for eqn in inner.eqns:
            self._eqns.append(eqn)
            outputs = self._equation(eqn, [*map(read, eqn.invars)])
            values |= zip(eqn.outvars, outputs, strict=True)
            self._eqns.pop()
        return [*map(read, inner.outvars)]

    def _equation(self, eqn: Equation, inputs: list[Scalars]) -> Sequence[Scalars]:
        for variable in eqn.outvars:
            self._check(variable.aval)
        name = eqn.primitive.name
        if name in RULES:
            return RULES[name](self, eqn, *inputs)
        if name in ELEMENTWISE:
            return [self.elementwise(name, eqn.outvars[0].aval, inputs, eqn.params)]
        if kind(eqn) == "call":
            return self.run(next(sub_jaxprs(eqn)), inputs)
        if kind(eqn) == "branches":
            return RULES["cond"](self, eqn, *inputs)
        raise self.refuse(
            "is not supported in kernels", "Sweep `fn` itself, without `kernel`."
        )

    def _check(self, aval: Any) -> None:
        shape = getattr(aval, "shape", ())
        dtype: Any = getattr(aval, "dtype", None)
        if math.prod(shape) > _MOST_NUMBERS:
            raise self.refuse(
                f"has an output of shape {shape}, and a kernel keeps all numbers of an "
                f"array apart, at most {_MOST_NUMBERS}",
                "Use smaller arrays, or sweep `fn` itself.",
            )
        is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
        if not is_key and str(dtype) not in DTYPES:
            raise self.refuse(
                f"has an output of dtype {dtype}",
                f"Kernels support {', '.join(sorted(DTYPES))}. Convert it, or sweep "
                "`fn` itself.",
            )

    def elementwise(
        self, name: str, aval: Any, inputs: list[Scalars], params: dict[str, Any]
    ) -> Scalars:
        """Apply an elementwise primitive to the elements of arrays."""
        inputs = [np.broadcast_to(x, aval.shape) for x in inputs]

        def one(index: tuple[int, ...]) -> Any:
            elements = [x[index] for x in inputs]
            return self.on_words(name, elements, aval.dtype, params)

        return filled(aval.shape, one)

    def on_words(
        self, name: str, elements: list[Any], dtype: Any, params: dict[str, Any]
    ) -> Any:
        """Apply a primitive to scalars, or word by word to keys."""
        keys = [e for e in elements if isinstance(e, Words)]
        if not keys:
            return self.apply(name, *elements, dtype=dtype, **params)
        words = [
            [e.words[k] if isinstance(e, Words) else e for e in elements]
            for k in range(len(keys[0].words))
        ]
        return Words([self.apply(name, *w, dtype=w[-1].dtype, **params) for w in words])

    def apply(
        self, name: str, *inputs: Scalar, dtype: Any = None, **params: Any
    ) -> Scalar:
        """Apply an elementwise primitive to scalars; known integers are computed."""
        dtype = np.dtype(inputs[0].dtype if dtype is None else dtype)
        values = [s.known for s in inputs if s.known is not None]
        if len(values) == len(inputs):
            known = known_result(name, dtype, values)
            if known is not None:
                return Scalar(dtype, known)
        if name == "select_n" and inputs[0].known is not None:
            return inputs[1 + int(inputs[0].known)]
        out = Scalar(dtype)
        params = {k: v for k, v in params.items() if k == PARAMETERS.get(name)}
        self.write(Operation(name, params, inputs, out))
        return out

    def write(self, step: Any) -> None:
        """Append a step."""
        self._num_steps += 1
        if self._num_steps > MOST_LINES:
            raise self.refuse(
                f"makes the kernel longer than {MOST_LINES} operations, whose "
                "compilation takes too long",
                "Use smaller arrays, or sweep `fn` itself.",
            )
        self.steps.append(step)

    def constant(self, number: Any, dtype: Any) -> Scalar:
        """Return a known scalar."""
        return Scalar(dtype, np.dtype(dtype).type(number))

    def fresh(self, aval: Any) -> Scalars:
        """Return an array of new scalars."""
        if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
            data = jax.eval_shape(jax.random.key_data, aval)
            count = data.shape[-1]
            return filled(
                aval.shape, lambda _: Words([Scalar(data.dtype) for _ in range(count)])
            )
        self._check(aval)
        return filled(aval.shape, lambda _: Scalar(aval.dtype))

    def block(self, write: Callable[[], Sequence[Scalar]]) -> Block:
        """Return the steps that a function writes."""
        outer, self.steps = self.steps, []
        try:
            outputs = list(write())
            return Block(self.steps, outputs)
        finally:
            self.steps = outer

    def loop(
        self,
        init: list[Scalars],
        test: Callable[[list[Scalars]], Scalar],
        body: Callable[[list[Scalars]], list[Scalars]],
    ) -> list[Scalars]:
        """Write a loop, and return the last carry."""
        start = flat(init)
        carry = [Scalar(s.dtype) for s in start]
        arrays = like(init, carry)
        outputs = [Scalar(s.dtype) for s in start]
        test_block = self.block(lambda: [test(arrays)])
        body_block = self.block(lambda: flat(body(arrays)))
        self.write(Loop(start, carry, test_block, body_block, outputs))
        return like(init, outputs)

    def inline(self, function: Callable[..., Any], *inputs: Scalars) -> list[Scalars]:
        """Write a function of JAX, applied to arrays."""
        examples = [jax.ShapeDtypeStruct(x.shape, x.flat[0].dtype) for x in inputs]
        make: Any = jax.make_jaxpr(function)
        with self._eqns[-1].ctx.manager:
            jaxpr = make(*examples)
        return self.run(jaxpr, inputs)


def _line_of(eqn: Equation) -> str:
    """Return where the user's code has written an equation, as words."""
    traceback: Any = eqn.source_info.traceback
    for frame in getattr(traceback, "frames", ()):
        if not is_library(frame.file_name):
            return f" (line {frame.line_num} of {frame.file_name})"
    return ""


@rule("while")
def _while(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
    params: Any = eqn.params
    if open_jaxpr(params["cond_jaxpr"])[0].outvars[0].aval.shape:
        # A loop under `vmap` has a condition for each lane, and ends with the last one.
        parts = [*map(as_function, (params["cond_jaxpr"], params["body_jaxpr"]))]
        structs = [v.aval for v in eqn.invars]
        loop = trace(lambda *x: remade(eqn, parts, list(x)), *structs)
        return writer.run(loop, inputs)
    num_test, num_body = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts = inputs[:num_test], inputs[num_test:][:num_body]
    init = list(inputs[num_test + num_body :])
    inner = open_jaxpr(params["body_jaxpr"])[0]
    # What the body passes on is no carry, so lanes may share it.
    passed = [
        out is given
        for out, given in zip(inner.outvars, inner.invars[num_body:], strict=True)
    ]

    def merged(carry: list[Scalars]) -> list[Scalars]:
        rest = iter(carry)
        return [x if p else next(rest) for x, p in zip(init, passed, strict=True)]

    def changed(arrays: Sequence[Scalars]) -> list[Scalars]:
        return [x for x, p in zip(arrays, passed, strict=True) if not p]

    def test(carry: list[Scalars]) -> Scalar:
        (out,) = writer.run(params["cond_jaxpr"], [*test_consts, *merged(carry)])
        return out[()]

    def body(carry: list[Scalars]) -> list[Scalars]:
        out = writer.run(params["body_jaxpr"], [*body_consts, *merged(carry)])
        return changed(out)

    return merged(writer.loop(changed(init), test, body))


@rule("cond")
def _cond(
    writer: Writer, eqn: Equation, index: Scalars, *inputs: Scalars
) -> list[Scalars]:
    branches: Any = eqn.params["branches"]
    which = index[()]
    if which.known is not None:
        at = max(0, min(int(which.known), len(branches) - 1))
        return writer.run(branches[at], inputs)
    forms = [writer.fresh(v.aval) for v in eqn.outvars]
    blocks = [writer.block(lambda b=b: flat(writer.run(b, inputs))) for b in branches]
    writer.write(Choice(which, blocks, flat(forms)))
    return forms


@rule("scan")
def _scan(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
    params: Any = eqn.params
    num_consts, num_carry = scan_counts(eqn)
    length, reverse, body = params["length"], params["reverse"], params["jaxpr"]
    consts, init = list(inputs[:num_consts]), list(inputs[num_consts:][:num_carry])
    rows = list(inputs[num_consts + num_carry :])
    num_rows_out = len(eqn.outvars) - num_carry

    def step(
        carry: list[Scalars], x: list[Scalars]
    ) -> tuple[list[Scalars], list[Scalars]]:
        out = writer.run(body, [*consts, *carry, *x])
        return out[:num_carry], out[num_carry:]

    if length <= _MOST_UNROLLED and (rows or num_rows_out):
        return _unrolled(step, init, rows, length, reverse, num_rows_out)
    tables = [RowTable.of(writer, x) for x in rows]
    forms = [writer.fresh(v.aval) for v in open_jaxpr(body)[0].outvars[num_carry:]]
    results = [RowTable(writer, form, length) for form in forms]
    zero, one = (single(writer.constant(k, "int32")) for k in (0, 1))

    def test(carry: list[Scalars]) -> Scalar:
        end = writer.constant(length, "int32")
        return writer.apply("lt", carry[0][()], end, dtype=bool)

    def turn(carry: list[Scalars]) -> list[Scalars]:
        at = count = carry[0][()]
        if reverse:
            at = writer.apply("sub", writer.constant(length - 1, "int32"), count)
        out, ys = step(carry[1:], [t.row(at) for t in tables])
        for table, y in zip(results, ys, strict=True):
            table.store(at, y)
        return [single(writer.apply("add", count, one[()])), *out]

    carry = writer.loop([zero, *init], test, turn)[1:]
    return [*carry, *[t.all() for t in results]]


def _unrolled(
    step: Callable[..., Any],
    carry: list[Scalars],
    rows: list[Scalars],
    length: int,
    reverse: bool,
    num_rows_out: int,
) -> list[Scalars]:
    ys: list[Any] = [None] * length
    for t in reversed(range(length)) if reverse else range(length):
        carry, ys[t] = step(carry, [at_row(x, t) for x in rows])
    return [*carry, *[stacked([y[k] for y in ys]) for k in range(num_rows_out)]]


def at_row(array: Scalars, index: int) -> Scalars:
    """Return a row, which is an array also if it has one element."""
    row = array[index]
    return row if isinstance(row, np.ndarray) else single(row)


def stacked(arrays: Sequence[Scalars]) -> Scalars:
    """Stack arrays along a new first axis."""
    return filled((len(arrays), *arrays[0].shape), lambda i: arrays[i[0]][i[1:]])


class RowTable:
    """An array of a `scan` in memory: a table for each number of a row."""

    def __init__(self, writer: Writer, form: Scalars, length: int):
        self.writer, self.form, self.length = writer, form, length
        self.tables = [Table(s.dtype, length, object()) for s in flat([form])]

    @classmethod
    def of(cls, writer: Writer, array: Scalars) -> "RowTable":
        """Write an array into memory."""
        table = cls(writer, at_row(array, 0), len(array))
        for k in range(len(array)):
            table.store(writer.constant(k, "int32"), at_row(array, k))
        return table

    def store(self, index: Scalar, row: Scalars) -> None:
        """Write a row."""
        for table, value in zip(self.tables, flat([row]), strict=True):
            self.writer.write(Store(table, index, value))

    def row(self, index: Scalar) -> Scalars:
        """Read a row."""
        out = [Scalar(t.dtype) for t in self.tables]
        for table, scalar in zip(self.tables, out, strict=True):
            self.writer.write(Load(table, index, scalar))
        return like([self.form], out)[0]

    def all(self) -> Scalars:
        """Read all rows."""
        rows = [self.row(self.writer.constant(k, "int32")) for k in range(self.length)]
        return stacked(rows)


@rule("threefry2x32")
def _threefry(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
    shape = eqn.outvars[0].aval.shape  # pyright: ignore[reportAttributeAccessIssue]
    words = [np.broadcast_to(x, shape) for x in inputs]
    rounds = ft.partial(_threefry_rounds, writer)
    pairs = filled(shape, lambda i: rounds(*(w[i] for w in words)))
    return [filled(shape, lambda i, k=k: pairs[i][k]) for k in (0, 1)]


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry_rounds(
    writer: Writer, k1: Scalar, k2: Scalar, x: Scalar, y: Scalar
) -> tuple[Scalar, Scalar]:
    """Return two words of the Threefry generator of Salmon et al. (2011)."""
    apply = writer.apply

    def word(number: int) -> Scalar:
        return writer.constant(number, "uint32")

    keys = [k1, k2, apply("xor", apply("xor", k1, k2), word(0x1BD11BDA))]
    x, y = apply("add", x, k1), apply("add", y, k2)
    for turn in range(5):
        for by in _ROTATIONS[turn % 2]:
            x = apply("add", x, y)
            left = apply("shift_left", y, word(by))
            right = apply("shift_right_logical", y, word(32 - by))
            y = apply("xor", x, apply("or", left, right))
        x = apply("add", x, keys[(turn + 1) % 3])
        after = apply("add", keys[(turn + 2) % 3], word(turn + 1))
        y = apply("add", y, after)
    return x, y


def _key_of(words: Scalars) -> Words:
    return Words(list(words.flat))


def _words_of(key: Words) -> Scalars:
    return filled((len(key.words),), lambda i: key.words[i[0]])


@rule("random_wrap")
def _random_wrap(writer: Writer, eqn: Equation, data: Scalars) -> list[Scalars]:
    return [filled(data.shape[:-1], lambda i: _key_of(data[i]))]


@rule("random_unwrap")
def _random_unwrap(writer: Writer, eqn: Equation, keys: Scalars) -> list[Scalars]:
    count = eqn.outvars[0].aval.shape[-1]  # pyright: ignore[reportAttributeAccessIssue]
    return [filled((*keys.shape, count), lambda i: keys[i[:-1]].words[i[-1]])]


@rule("random_seed")
def _random_seed(writer: Writer, eqn: Equation, seeds: Scalars) -> list[Scalars]:
    impl: Any = eqn.params["impl"]

    def one(index: tuple[int, ...]) -> Words:
        return _key_of(writer.inline(impl.seed, single(seeds[index]))[0])

    return [filled(seeds.shape, one)]


@rule("random_split")
def _random_split(writer: Writer, eqn: Equation, keys: Scalars) -> list[Scalars]:
    shape = eqn.params["shape"]
    impl = _impl(eqn)
    data = _each(writer, keys, lambda key: impl.split(key, shape))
    return [filled(data.shape[:-1], lambda i: _key_of(data[i]))]


@rule("random_bits")
def _random_bits(writer: Writer, eqn: Equation, keys: Scalars) -> list[Scalars]:
    width, shape = eqn.params["bit_width"], eqn.params["shape"]
    impl = _impl(eqn)
    return [_each(writer, keys, lambda key: impl.random_bits(key, width, shape))]


@rule("random_fold_in")
def _random_fold_in(
    writer: Writer, eqn: Equation, keys: Scalars, data: Scalars
) -> list[Scalars]:
    impl = _impl(eqn)
    shape = eqn.outvars[0].aval.shape  # pyright: ignore[reportAttributeAccessIssue]
    keys, data = np.broadcast_to(keys, shape), np.broadcast_to(data, shape)

    def one(index: tuple[int, ...]) -> Words:
        # `fold_in` of JAX converts before it binds the primitive.
        inputs = _words_of(keys[index]), single(data[index])
        return _key_of(writer.inline(impl.fold_in, *inputs)[0])

    return [filled(shape, one)]


def _impl(eqn: Equation) -> Any:
    return eqn.invars[0].aval.dtype._impl  # pyright: ignore[reportAttributeAccessIssue]


def _each(writer: Writer, keys: Scalars, function: Callable[[Any], Any]) -> Scalars:
    """Apply a function of the words of a key to each key."""
    rows = filled(keys.shape, lambda i: writer.inline(function, _words_of(keys[i]))[0])
    if not keys.shape:
        return rows[()]
    row = rows.flat[0]
    return filled(
        (*keys.shape, *row.shape), lambda i: rows[i[: keys.ndim]][i[keys.ndim :]]
    )
