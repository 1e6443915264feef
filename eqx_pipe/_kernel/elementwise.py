"""The elementwise primitives of JAX that kernels support, each as it is in XLA.

A primitive that is not in this table is refused. Each has a test that compares it with
JAX for all pairs of special values of all dtypes.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from . import elementary as el
from .llvm import Value, quotient, remainder, shift

_Rule = Callable[..., Value]
ELEMENTWISE: dict[str, _Rule] = {}
"""Functions of values and of the parameters of a primitive."""


def _rule(*names: str) -> Callable[[_Rule], _Rule]:
    def add(function: _Rule) -> _Rule:
        ELEMENTWISE.update(dict.fromkeys(names, function))
        return function

    return add


def _comparison(name: str) -> _Rule:
    return lambda x, y, **_: x.compare(name, y)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    ELEMENTWISE[_name] = _comparison(_name)


@_rule("add", "add_any")
def _add(x: Value, y: Value, **_: Any) -> Value:
    return x + y


@_rule("sub")
def _sub(x: Value, y: Value, **_: Any) -> Value:
    return x - y


@_rule("mul")
def _mul(x: Value, y: Value, **_: Any) -> Value:
    return x * y


@_rule("div")
def _div(x: Value, y: Value, **_: Any) -> Value:
    return x / y if x.kind == "f" else quotient(x, y)


@_rule("rem")
def _rem(x: Value, y: Value, **_: Any) -> Value:
    return el.rem(x, y) if x.kind == "f" else remainder(x, y)


@_rule("neg")
def _neg(x: Value, **_: Any) -> Value:
    return -x


@_rule("and")
def _and(x: Value, y: Value, **_: Any) -> Value:
    return x & y


@_rule("or")
def _or(x: Value, y: Value, **_: Any) -> Value:
    return x | y


@_rule("xor")
def _xor(x: Value, y: Value, **_: Any) -> Value:
    return x ^ y


@_rule("not")
def _not(x: Value, **_: Any) -> Value:
    return ~x


@_rule("shift_left")
def _shift_left(x: Value, y: Value, **_: Any) -> Value:
    return shift("shl", x, y)


@_rule("shift_right_logical")
def _shift_right_logical(x: Value, y: Value, **_: Any) -> Value:
    return shift("lshr", x, y)


@_rule("shift_right_arithmetic")
def _shift_right_arithmetic(x: Value, y: Value, **_: Any) -> Value:
    return shift("ashr", x, y)


@_rule("population_count")
def _population_count(x: Value, **_: Any) -> Value:
    return x.call("ctpop")


@_rule("clz")
def _clz(x: Value, **_: Any) -> Value:
    return x.code.intrinsic("ctlz", x, tail="i1 false")  # defined for 0


@_rule("max")
def _max(x: Value, y: Value, **_: Any) -> Value:
    return _extreme("max", x, y)


@_rule("min")
def _min(x: Value, y: Value, **_: Any) -> Value:
    return _extreme("min", x, y)


def _extreme(name: str, x: Value, y: Value) -> Value:
    prefix = {"f": "", "i": "s", "u": "u"}[x.kind]
    # `maximum` returns NaN if either is, unlike `maxnum`.
    return x.call(f"{prefix}{name}{'imum' if x.kind == 'f' else ''}", y)


@_rule("clamp")
def _clamp(low: Value, x: Value, high: Value, **_: Any) -> Value:
    return _min(_max(low, x), high)


@_rule("abs")
def _abs(x: Value, **_: Any) -> Value:
    if x.kind == "f":
        return x.call("fabs")
    return x if x.kind == "u" else (x < 0).where(-x, x)


@_rule("sign")
def _sign(x: Value, **_: Any) -> Value:
    one = (x > 0).where(x.like(1), x)  # NaN and both zeros are their own signs
    return one if x.kind == "u" else (x < 0).where(x.like(-1), one)


@_rule("floor")
def _floor(x: Value, **_: Any) -> Value:
    return x.call("floor")


@_rule("ceil")
def _ceil(x: Value, **_: Any) -> Value:
    return x.call("ceil")


@_rule("round")
def _round(x: Value, *, rounding_method: Any, **_: Any) -> Value:
    return x.call("roundeven" if "EVEN" in str(rounding_method) else "round")


@_rule("is_finite")
def _is_finite(x: Value, **_: Any) -> Value:
    return x.call("fabs") < math.inf


@_rule("nextafter")
def _nextafter(x: Value, y: Value, **_: Any) -> Value:
    word = f"i{x.dtype.itemsize}"
    bits = x.view(word)
    outwards = (x < y).where(
        (x > 0).where(bits.like(1), -1), (x > 0).where(bits.like(-1), 1)
    )
    smallest = (y.view(word) & np.iinfo(word).min) | 1
    near = x.equals(0).where(smallest, bits + outwards).view(x.dtype)
    nan = x.is_nan() | y.is_nan()
    return nan.where(x.like(math.nan), x.equals(y).where(y, near))


@_rule("select_n")
def _select_n(which: Value, *cases: Value, **_: Any) -> Value:
    if which.dtype.kind == "b":
        return cases[-1] if len(cases) == 1 else which.where(cases[1], cases[0])
    out = cases[0]
    for k, case in enumerate(cases[1:], 1):
        out = (which >= k).where(case, out)
    return out


@_rule("convert_element_type")
def _convert(x: Value, *, new_dtype: Any, **_: Any) -> Value:
    return x.to(new_dtype)


@_rule("bitcast_convert_type")
def _bitcast(x: Value, *, new_dtype: Any, **_: Any) -> Value:
    return x.view(new_dtype)


@_rule("copy", "copy_p", "stop_gradient", "optimization_barrier")
def _same(x: Value, **_: Any) -> Value:
    return x


@_rule("square")
def _square(x: Value, **_: Any) -> Value:
    return x * x


@_rule("integer_pow")
def _integer_pow(x: Value, *, y: int, **_: Any) -> Value:
    if y == 0:
        return x.like(1)
    power, square, left = None, x, abs(y)
    while left:
        if left & 1:
            power = square if power is None else power * square
        left >>= 1
        square = square * square if left else square
    assert power is not None
    return power if y > 0 else 1 / power


@_rule("sqrt")
def _sqrt(x: Value, **_: Any) -> Value:
    return x.call("sqrt")


@_rule("rsqrt")
def _rsqrt(x: Value, **_: Any) -> Value:
    return 1 / x.call("sqrt")


@_rule("one_minus_square")
def _one_minus_square(x: Value, **_: Any) -> Value:
    return (1 - x) * (x + 1)


def _elementary(function: _Rule) -> _Rule:
    return lambda *values, **_: function(*values)


for _name in el.FUNCTIONS:
    ELEMENTWISE[_name] = _elementary(getattr(el, _name))

FLOATS_ONLY = frozenset(el.FUNCTIONS)

_FOLDED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "clamp": lambda low, x, high: np.minimum(np.maximum(low, x), high),
    "select_n": lambda which, *cases: cases[max(0, min(int(which), len(cases) - 1))],
    "convert_element_type": lambda x: x,
}


def folded(name: str, dtype: np.dtype, values: list[np.generic]) -> Any:
    """Return the result for known integers, or `None` where LLVM has to find it.

    Indices have to be known when the instructions are written.
    """
    function = _FOLDED.get(name)
    if function is None or any(jnp.issubdtype(x.dtype, np.inexact) for x in values):
        return None
    with np.errstate(over="ignore"):
        return np.asarray(function(*values)).astype(dtype)[()]
