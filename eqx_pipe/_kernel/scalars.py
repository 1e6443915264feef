"""From the jaxpr of one point to a program whose values are all scalars.

An array is a NumPy array of `Scalar`s, so reshaping, slicing and joining arrays leave
no trace in the program. It consists of elementwise `Operation`s, `Loop`s, `Choice`s,
`Fail`s, and `Table`s, the arrays of a `scan`. What does not depend on the point and is
not in a loop is computed by JAX, once, and becomes an operand.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    rebind,
    remade,
    scan_counts,
    sub_jaxprs,
    trace,
)
from .._tree import as_data
from .elementwise import ELEMENTWISE, PARAMETERS, known_result
from .failures import SITES, Raisers, function_of, raiser_of
from .llvm import DTYPES, MOST_LINES

if TYPE_CHECKING:
    Scalars: TypeAlias = Any  # elements of NumPy's object arrays have no type
else:
    Scalars: TypeAlias = np.ndarray
"""An array of `Scalar`s, or of the `Words` of PRNG keys."""

_INT32: Any = {"dtype": np.dtype("int32"), "new_dtype": np.dtype("int32")}
# Each number is an operation of its own: a sum of longer arrays takes a kernel longer.
_MOST_NUMBERS = 250
# So few rows of a scan are operations; more are in memory, which a loop reads.
_MOST_UNROLLED = 4
# XLA takes 0.6 of a kernel's time for elementwise functions of 240 numbers, which most
# functions without a loop and with so many operations are. (Of small matrix products
# it takes longer.)
_MOST_WITHOUT_LOOP = 500


class Scalar:
    """A number of one point."""

    __slots__ = ("dtype", "known")

    def __init__(self, dtype: Any, known: Any = None):
        self.dtype, self.known = np.dtype(dtype), known


class Words:
    """The words of a PRNG key, which is one element of an array."""

    __slots__ = ("array",)

    def __init__(self, array: Scalars):
        self.array = array


class Operation(NamedTuple):
    """An elementwise primitive."""

    primitive: str
    params: dict[str, Any]
    inputs: Sequence[Scalar]
    outputs: Sequence[Scalar]


class Block(NamedTuple):
    """Steps, and the scalars that are used after them."""

    steps: list[Any]
    outputs: list[Scalar]


class Loop(NamedTuple):
    """A `while_loop`: the block `test` has one output, and `body` the next carry.

    `ends` tells whether it has an end for any values, as a `scan` has.
    """

    init: list[Scalar]
    carry: list[Scalar]
    test: Block
    body: Block
    ends: bool


class Choice(NamedTuple):
    """A `cond` or `switch`."""

    which: Scalar
    branches: list[Block]
    outputs: list[Scalar]


class Fail(NamedTuple):
    """An `equinox.error_if`: the number of an error if the test is true."""

    test: Scalar
    number: Scalar


class Table(NamedTuple):
    """Numbers in memory, which are found by their place."""

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


class Operand(NamedTuple):
    """An array that a kernel reads: of one row for each of the `lanes`, or for all."""

    array: Any
    scalars: list[Scalar]
    lanes: bool


class Program(NamedTuple):
    """A function of one point.

    `failure` is the number of its first error, or 0: the last output if it has any.
    """

    operands: list[Operand]
    block: Block
    raisers: Raisers
    failure: Scalar


def program_of(
    jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any], lanes: Sequence[bool]
) -> Program:
    """Return the program of a jaxpr of one point.

    `inputs` are arrays, some of which have a row for each of the `lanes`. `consts`
    replace the arrays that the jaxpr closes over, and all points share them.
    """
    writer = Writer()
    avals = [v.aval for v in open_jaxpr(jaxpr)[0].invars]
    given = [
        writer.operand(x, aval, True) if own else x
        for x, aval, own in zip(inputs, avals, lanes, strict=True)
    ]
    outputs = flat(map(writer.scalars, writer.run(jaxpr, given, consts)))
    loops = any(isinstance(step, Loop | Choice) for step in writer.steps)
    if not loops and len(writer.steps) > _MOST_WITHOUT_LOOP:
        raise writer.refuse(
            f"has no loop, and {len(writer.steps)} operations, which XLA vectorizes "
            "better than a kernel"
        )
    failure = Scalar("int32")
    outputs += [failure] * bool(writer.raisers)
    block = Block(writer.steps, outputs)
    return Program(writer.operands, block, writer.raisers, failure)


def within(part: Any) -> Iterator[Any]:
    """Yield steps, scalars and all other parts of a program, down to the innermost."""
    yield part
    if isinstance(part, list | tuple):
        for inner in part:
            yield from within(inner)


def each(function: Callable[..., Any], *arrays: Scalars) -> Scalars:
    """Apply a function to the elements of arrays."""
    out = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return out if isinstance(out, np.ndarray) else single(out)


def filled(shape: Sequence[int], of: Callable[[tuple[int, ...]], Any]) -> Scalars:
    """Return an array whose elements are a function of their place."""
    out = np.empty(tuple(shape), object)
    for place in np.ndindex(*shape):
        out[place] = of(place)
    return out


def single(element: Any) -> Scalars:
    """Return an array without axes."""
    return filled((), lambda _: element)


def flat(arrays: Iterable[Scalars]) -> list[Scalar]:
    """Return the scalars of arrays in order, and those of keys word by word."""
    elements = (e for array in arrays for e in array.flat)
    return [s for e in elements for s in (e.array if isinstance(e, Words) else [e])]


def like(arrays: Iterable[Scalars], scalars: Iterable[Scalar]) -> list[Scalars]:
    """Return arrays like those given, of other scalars: the inverse of `flat`."""
    rest = iter(scalars)

    def other(element: Any) -> Any:
        if isinstance(element, Words):
            return Words(each(lambda _: next(rest), element.array))
        return next(rest)

    return [each(other, array) for array in arrays]


def _shared(x: Any) -> Any:
    """Return a value that does not depend on the point as an array, others as `None`.

    It is an array of NumPy if it is known while the kernel is written.
    """
    if not isinstance(x, np.ndarray) or x.dtype != object:
        return x
    numbers = [getattr(s, "known", None) for s in x.flat]
    if not numbers or any(n is None for n in numbers):
        return None
    return np.asarray(numbers, x.flat[0].dtype).reshape(x.shape)


Rule: TypeAlias = Callable[..., Sequence[Scalars]]
RULES: dict[str, Rule] = {}
"""Functions of a `Writer`, an equation and its inputs, for each primitive on arrays."""
MOVES: set[str] = set()
"""The primitives that only move elements."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of primitives."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


class Writer:
    """The steps of a program, as they are written.

    A value is an array of scalars if it depends on the point. Otherwise it is an array
    of JAX, which becomes an operand where scalars meet it, or one of NumPy if its
    numbers are known now, as those of literals: they are written as constants, and
    integers among them may be places of elements.
    """

    def __init__(self):
        self.steps: list[Any] = []
        self.operands: list[Operand] = []
        self.raisers: Raisers = {}
        # By identity, with the arrays: the address of one that is gone is reused.
        self._known_operands: dict[int, tuple[Any, Scalars]] = {}
        self._num_steps = self._depth = 0
        self._eqns: list[Equation] = []  # the innermost is the last

    def refuse(self, wrong: str, cure: str = "Sweep `fn` itself.") -> ValueError:
        """Return an error that names the primitive and the line of the user's code."""
        name = self._eqns[-1].primitive.name if self._eqns else "fn"
        # A jaxpr that JAX has kept from an earlier trace knows no line of this one.
        line = next(filter(None, map(_line_of, reversed(self._eqns))), "")
        return value_error("kernel", f"`{name}`{line} {wrong}.", cure)

    def run(
        self, jaxpr: Any, inputs: Sequence[Any], consts: Sequence[Any] | None = None
    ) -> list[Any]:
        """Write the equations of a jaxpr, and return its outputs."""
        inner, closed_over = open_jaxpr(jaxpr)
        consts = closed_over if consts is None else consts
        values = dict(zip(inner.constvars, consts, strict=True))
        values |= zip(inner.invars, inputs, strict=True)

        def read(atom: Any) -> Any:
            return _literal(atom) if is_literal(atom) else values[atom]

        for eqn in inner.eqns:
            self._eqns.append(eqn)
            outputs = self._equation(eqn, [*map(read, eqn.invars)])
            values |= zip(eqn.outvars, outputs, strict=True)
            self._eqns.pop()
        return [*map(read, inner.outvars)]

    def _equation(self, eqn: Equation, inputs: list[Any]) -> Sequence[Any]:
        name = eqn.primitive.name
        if name not in RULES and kind(eqn) == "call":
            return self.run(next(sub_jaxprs(eqn)), inputs)
        shared = None if self._depth else [*map(_shared, inputs)]
        if shared is not None and not any(x is None for x in shared):
            if not self._is_for_llvm(eqn, shared):
                return rebind(eqn, shared)
        found = raiser_of(eqn)
        if found is not None:
            return self._error(eqn, *found, inputs)
        avals = [v.aval for v in eqn.outvars]
        for aval in avals:
            self._check(aval)
        if avals and not eqn.effects and not any(map(_size, avals)):
            return [*map(self.fresh, avals)]
        arrays = [*map(self.scalars, inputs)]
        if name in RULES:
            return RULES[name](self, eqn, *arrays)
        if name in ELEMENTWISE:
            dtype: Any = getattr(eqn.outvars[0].aval, "dtype", None)
            return [self.elementwise(name, dtype, *arrays, **eqn.params)]
        if kind(eqn) == "branches":
            return RULES["cond"](self, eqn, *arrays)
        raise self.refuse("is not supported in kernels")

    def _error(
        self, eqn: Equation, which: int, call: Equation, inputs: list[Any]
    ) -> list[Any]:
        """Write an `error_if`, whose branch `which` raises, and return its values."""
        number = self.raisers.setdefault(function_of(call), len(self.raisers) + 1)
        if number == SITES:
            raise self.refuse(f"is `error_if` number {SITES}, and {SITES - 1} fit")
        branches, atom = eqn.params["branches"], call.invars[0]
        known = open_jaxpr(branches[which])[0].invars
        message = _literal(atom) if is_literal(atom) else inputs[1 + known.index(atom)]
        test, index = (self.scalars(x)[()] for x in (inputs[0], message))
        index = self.apply("convert_element_type", index, **_INT32)
        index = self.apply("mul", index, self.constant(SITES, "int32"))
        number = self.apply("add", index, self.constant(number, "int32"))
        self.write(Fail(self.compare("eq", test, which), number))
        return self.run(branches[1 - which], inputs[1:])

    def _is_for_llvm(self, eqn: Equation, shared: list[Any]) -> bool:
        """Return whether known numbers stay known, which indices have to be."""
        if not all(isinstance(x, np.ndarray) for x in shared):
            return False
        integers = not jnp.issubdtype(_aval(eqn).dtype, jnp.inexact)
        name = eqn.primitive.name
        return name in MOVES or (name in ELEMENTWISE and integers)

    def _check(self, aval: Any) -> None:
        dtype: Any = getattr(aval, "dtype", None)
        if _size(aval) > _MOST_NUMBERS:
            raise self.refuse(
                f"has an array of shape {aval.shape}, and a kernel takes at most "
                f"{_MOST_NUMBERS} numbers, since XLA vectorizes longer arrays better",
                "Use smaller arrays, or sweep `fn` itself.",
            )
        is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
        if not is_key and str(dtype) not in DTYPES:
            raise self.refuse(
                f"has an array of dtype {dtype}",
                f"Kernels support {', '.join(sorted(DTYPES))}: convert it, or sweep "
                "`fn` itself.",
            )

    def scalars(self, x: Any) -> Scalars:
        """Return the scalars of a value, which becomes an operand if all share it."""
        if isinstance(x, np.ndarray):
            if x.dtype == object:
                return x
            self._check(x)
            return filled(x.shape, lambda i: Scalar(x.dtype, x[i]))
        if id(x) not in self._known_operands:
            self._known_operands[id(x)] = x, self.operand(x, x, False)
        return self._known_operands[id(x)][1]

    def operand(self, array: Any, aval: Any, lanes: bool) -> Scalars:
        """Add an operand, which for a point is like `aval`."""
        scalars = self.fresh(aval)
        self.operands.append(Operand(as_data(array), flat([scalars]), lanes))
        return scalars

    def elementwise(
        self, name: str, dtype: Any, *inputs: Scalars, **params: Any
    ) -> Any:
        """Apply an elementwise primitive to arrays, or to arrays of keys."""

        def one(*elements: Any) -> Any:
            keys = [e.array for e in elements if isinstance(e, Words)]
            if not keys:
                return self.apply(name, *elements, dtype=dtype, **params)
            arrays = [e.array if isinstance(e, Words) else single(e) for e in elements]
            word = keys[0].flat[0].dtype
            return Words(self.elementwise(name, word, *arrays, **params))

        return each(one, *inputs)

    def apply(
        self, name: str, *inputs: Scalar, dtype: Any = None, **params: Any
    ) -> Scalar:
        """Apply an elementwise primitive to scalars; known integers are computed."""
        dtype = np.dtype(inputs[0].dtype if dtype is None else dtype)
        values = [s.known for s in inputs]
        if not any(v is None for v in values):
            known = known_result(name, dtype, values)
            if known is not None:
                return Scalar(dtype, known)
        out = Scalar(dtype)
        params = {k: v for k, v in params.items() if k == PARAMETERS.get(name)}
        self.write(Operation(name, params, inputs, [out]))
        return out

    def compare(self, name: str, x: Scalar, y: Scalar | int) -> Scalar:
        """Compare a scalar with another, or with a number."""
        y = y if isinstance(y, Scalar) else self.constant(y, x.dtype)
        return self.apply(name, x, y, dtype=bool)

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
        self._check(aval)
        data: Any = jax.eval_shape(as_data, aval)

        def new(place: tuple[int, ...]) -> Any:
            if data.shape == aval.shape:
                return Scalar(data.dtype)
            return Words(filled(data.shape[-1:], lambda _: Scalar(data.dtype)))

        return filled(aval.shape, new)

    def block(self, write: Callable[[], Sequence[Scalar]]) -> Block:
        """Return the steps that a function writes."""
        outer, self.steps = self.steps, []
        self._depth += 1
        outputs = list(write())
        inner, self.steps = self.steps, outer
        self._depth -= 1
        return Block(inner, outputs)

    def run_inside(self, jaxpr: Any, inputs: Sequence[Any]) -> list[Scalars]:
        """Write the equations of the body of a loop or of a branch."""
        return [*map(self.scalars, self.run(jaxpr, inputs))]

    def loop(
        self,
        init: list[Scalars],
        test: Callable[[list[Scalars]], Scalar],
        body: Callable[[list[Scalars]], list[Scalars]],
        ends: bool = False,
    ) -> list[Scalars]:
        """Write a loop, and return the last carry."""
        start = flat(init)
        carry = [Scalar(s.dtype) for s in start]
        arrays = like(init, carry)
        test_block = self.block(lambda: [test(arrays)])
        body_block = self.block(lambda: flat(body(arrays)))
        self.write(Loop(start, carry, test_block, body_block, ends))
        return arrays

    def inline(self, function: Callable[..., Any], *inputs: Scalars) -> list[Scalars]:
        """Write a function of JAX, applied to arrays."""
        examples = [jax.ShapeDtypeStruct(x.shape, x.flat[0].dtype) for x in inputs]
        make: Any = jax.make_jaxpr(function)
        with self._eqns[-1].ctx.manager:
            jaxpr = make(*examples)
        return self.run_inside(jaxpr, inputs)


def _size(aval: Any) -> int:
    return math.prod(getattr(aval, "shape", ()))


def _literal(atom: Any) -> np.ndarray:
    return np.asarray(atom.val, atom.aval.dtype)


def _aval(eqn: Equation) -> Any:
    return eqn.outvars[0].aval


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
        return writer.run_inside(loop, inputs)
    num_test, num_body = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts = inputs[:num_test], inputs[num_test:][:num_body]
    init = inputs[num_test + num_body :]
    inner = open_jaxpr(params["body_jaxpr"])[0]
    # Values that the body returns unchanged stay inputs, which lanes can share.
    carried = inner.invars[num_body:]
    passed = [a is b for a, b in zip(inner.outvars, carried, strict=True)]

    def merged(carry: Iterable[Scalars]) -> list[Scalars]:
        rest = iter(carry)
        return [x if p else next(rest) for x, p in zip(init, passed, strict=True)]

    def changed(arrays: Sequence[Scalars]) -> list[Scalars]:
        return [x for x, p in zip(arrays, passed, strict=True) if not p]

    def test(carry: list[Scalars]) -> Scalar:
        inputs = [*test_consts, *merged(carry)]
        return writer.run_inside(params["cond_jaxpr"], inputs)[0][()]

    def body(carry: list[Scalars]) -> list[Scalars]:
        inputs = [*body_consts, *merged(carry)]
        return changed(writer.run_inside(params["body_jaxpr"], inputs))

    return merged(writer.loop(changed(init), test, body))


@rule("cond")
def _cond(
    writer: Writer, eqn: Equation, which: Scalars, *inputs: Scalars
) -> list[Scalars]:
    branches: Any = eqn.params["branches"]
    if which[()].known is not None:
        at = max(0, min(int(which[()].known), len(branches) - 1))
        return writer.run_inside(branches[at], inputs)
    outputs = [writer.fresh(v.aval) for v in eqn.outvars]
    blocks = [
        writer.block(lambda b=b: flat(writer.run_inside(b, inputs))) for b in branches
    ]
    writer.write(Choice(which[()], blocks, flat(outputs)))
    return outputs


@rule("scan")
def _scan(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
    params: Any = eqn.params
    num_consts, num_carry = scan_counts(eqn)
    length, backwards, body = params["length"], params["reverse"], params["jaxpr"]
    consts, init = inputs[:num_consts], list(inputs[num_consts:][:num_carry])
    rows = inputs[num_consts + num_carry :]
    if not length:
        return [*init, *(writer.fresh(v.aval) for v in eqn.outvars[num_carry:])]
    forms = [writer.fresh(v.aval) for v in open_jaxpr(body)[0].outvars[num_carry:]]

    def step(
        carry: list[Scalars], row: Iterator[Scalars]
    ) -> tuple[list[Scalars], list[Scalars]]:
        out = writer.run_inside(body, [*consts, *carry, *row])
        return out[:num_carry], out[num_carry:]

    if length <= _MOST_UNROLLED and (rows or forms):
        carry, ys = init, [[]] * length
        for t in reversed(range(length)) if backwards else range(length):
            carry, ys[t] = step(carry, (x[t, ...] for x in rows))
        return [*carry, *(np.stack(column) for column in zip(*ys, strict=True))]

    read = [_RowTable(writer, x[0, ...], length) for x in rows]
    results = [_RowTable(writer, form, length) for form in forms]
    for table, x in zip(read, rows, strict=True):
        for t in range(length):
            table.store(writer.constant(t, "int32"), x[t, ...])
    one, last = (writer.constant(k, "int32") for k in (1, length - 1))

    def test(carry: list[Scalars]) -> Scalar:
        return writer.compare("lt", carry[0][()], length)

    def turn(carry: list[Scalars]) -> list[Scalars]:
        at = count = carry[0][()]
        at = writer.apply("sub", last, count) if backwards else count
        out, ys = step(carry[1:], (table.row(at) for table in read))
        for table, y in zip(results, ys, strict=True):
            table.store(at, y)
        return [single(writer.apply("add", count, one)), *out]

    start = [single(writer.constant(0, "int32")), *init]
    _, *carry = writer.loop(start, test, turn, ends=True)
    return [*carry, *(table.all() for table in results)]


class _RowTable:
    """An array of a `scan` in memory: a table for each number of a row."""

    def __init__(self, writer: Writer, form: Scalars, length: int):
        self.writer, self.form, self.length = writer, form, length
        self.tables = [Table(s.dtype, length, object()) for s in flat([form])]

    def store(self, place: Scalar, row: Scalars) -> None:
        """Write a row."""
        for table, value in zip(self.tables, flat([row]), strict=True):
            self.writer.write(Store(table, place, value))

    def row(self, place: Scalar) -> Scalars:
        """Read a row."""
        out = [Scalar(table.dtype) for table in self.tables]
        for table, scalar in zip(self.tables, out, strict=True):
            self.writer.write(Load(table, place, scalar))
        return like([self.form], out)[0]

    def all(self) -> Scalars:
        """Read all rows."""
        places = (self.writer.constant(k, "int32") for k in range(self.length))
        return np.stack([self.row(place) for place in places])


@rule("threefry2x32")
def _threefry(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
    def draw(*words: Scalar) -> tuple[Scalar, Scalar]:
        outputs = Scalar("uint32"), Scalar("uint32")
        writer.write(Operation("threefry2x32", {}, words, outputs))
        return outputs

    pairs = each(draw, *inputs)
    return [each(lambda pair, k=k: pair[k], pairs) for k in (0, 1)]


@rule("random_wrap")
def _random_wrap(writer: Writer, eqn: Equation, data: Scalars) -> Sequence[Scalars]:
    return [filled(data.shape[:-1], lambda i: Words(data[i]))]


@rule("random_unwrap")
def _random_unwrap(writer: Writer, eqn: Equation, keys: Scalars) -> list[Scalars]:
    return [filled(_aval(eqn).shape, lambda i: keys[i[:-1]].array[i[-1]])]


_ON_KEYS: dict[str, Callable[[Any, Any], Callable[..., Any]]] = {
    "random_seed": lambda impl, params: impl.seed,
    "random_fold_in": lambda impl, params: impl.fold_in,
    "random_split": lambda impl, params: lambda k: impl.split(k, params["shape"]),
    "random_bits": lambda impl, params: (
        lambda k: impl.random_bits(k, params["bit_width"], params["shape"])
    ),
}


@rule(*_ON_KEYS)
def _random(writer: Writer, eqn: Equation, *inputs: Scalars) -> Sequence[Scalars]:
    """Write a function of JAX's generator for each key."""
    operand: Any = eqn.invars[0].aval
    impl = eqn.params.get("impl") or operand.dtype._impl
    function = _ON_KEYS[eqn.primitive.name](impl, eqn.params)

    def one(*elements: Any) -> Any:
        given = (e.array if isinstance(e, Words) else single(e) for e in elements)
        return Words(writer.inline(function, *given)[0])

    rows = [e.array for e in each(one, *inputs).flat]
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    data = np.stack(rows).reshape((*shape, *rows[0].shape))
    is_key = jnp.issubdtype(_aval(eqn).dtype, jax.dtypes.prng_key)
    return _random_wrap(writer, eqn, data) if is_key else [data]
