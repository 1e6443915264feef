"""The elementwise primitives of JAX that kernels support, each as it is in XLA.

Any other is refused. A test compares each with JAX for all pairs of special values.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from .elementary import FUNCTIONS, threefry
from .llvm import Value, divided, shift


def _extreme(name: str) -> Callable[[Value, Value], Value]:
    # `maximum` returns NaN if either is, unlike `maxnum`.
    names = {"f": f"{name}imum", "i": f"s{name}", "u": f"u{name}"}
    return lambda x, y: x.call(names[x.kind], y)


_max, _min = _extreme("max"), _extreme("min")


def _abs(x: Value) -> Value:
    return x.call("fabs") if x.kind == "f" else (x < 0).where(-x, x)


def _sign(x: Value) -> Value:
    # NaN and both zeros are their own signs. The sum flushes subnormal numbers to 0, as
    # comparisons do when XLA runs.
    other = (x > 0).where(x.like(1), x + x)
    return other if x.kind == "u" else (x < 0).where(x.like(-1), other)


def _nextafter(x: Value, y: Value) -> list[Value]:
    # Compare as integers, since XLA runs with subnormal numbers flushed to 0.
    word = f"i{x.dtype.itemsize}"
    size = np.iinfo(word).max
    of_x, of_y = x.view(word), y.view(word)
    inwards = ((of_x ^ of_y) < 0) | ((of_x & size) > (of_y & size))
    near = of_x + inwards.where(of_x.like(-1), 1)
    near = (of_x & size).equals(0).where((of_y & ~size) | 1, near)
    same = of_x.equals(of_y) | ((of_x | of_y) & size).equals(0)
    near = same.where(of_y, near).view(x.dtype)
    return [(x.is_nan() | y.is_nan()).where(x.like(math.nan), near)]


def _in_order(how: str) -> Callable[[Value, Value], Value]:
    """Compare in the total order of floats: -NaN, -inf, ..., -0, 0, ..., inf, NaN."""

    def place(x: Value) -> Value:
        if x.kind != "f":
            return x
        bits = x.view(f"i{x.dtype.itemsize}")
        return (bits < 0).where(bits ^ np.iinfo(bits.dtype).max, bits)

    return lambda x, y: place(x).compare(how, place(y))


def _select_n(which: Value, *cases: Value) -> Value:
    if which.dtype.kind == "b":
        return which.where(cases[-1], cases[0])
    out = cases[0]
    for k, case in enumerate(cases[1:], 1):
        out = (which >= k).where(case, out)
    return out


def _integer_pow(x: Value, *, y: int) -> Value:
    power, square, left = x.like(1), x, abs(y)
    while left:
        power = power * square if left & 1 else power
        left >>= 1
        square = square * square if left else square
    return power if y >= 0 else 1 / power


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "add_any": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y if x.kind == "f" else divided(x, y, 0),
    "rem": lambda x, y: FUNCTIONS["fmod"](x, y) if x.kind == "f" else divided(x, y, 1),
    "neg": lambda x: -x,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "not": lambda x: ~x,
    "shift_left": lambda x, y: shift("shl", x, y),
    "shift_right_logical": lambda x, y: shift("lshr", x, y),
    "shift_right_arithmetic": lambda x, y: shift("ashr", x, y),
    "population_count": lambda x: x.call("ctpop"),
    "clz": lambda x: x.code.intrinsic("ctlz", x, tail=[("i1", "false")]),  # for 0
    "eq": lambda x, y: x.equals(y),
    "ne": lambda x, y: x.compare("ne", y),
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq_to": _in_order("eq"),
    "lt_to": _in_order("lt"),
    "le_to": _in_order("le"),
    "max": _max,
    "min": _min,
    "clamp": lambda low, x, high: _min(_max(low, x), high),
    "select_n": _select_n,
    "abs": _abs,
    "sign": _sign,
    "floor": lambda x: x.call("floor"),
    "ceil": lambda x: x.call("ceil"),
    "round": lambda x, rounding_method: x.call(
        "roundeven" if int(rounding_method) else "round"
    ),
    "is_finite": lambda x: x.call("fabs") < math.inf,
    "nextafter": lambda x, y: x.code.function(
        "nextafter", _nextafter, x, y, inlined=False
    )[0],
    "square": lambda x: x * x,
    "one_minus_square": lambda x: (1 - x) * (x + 1),
    "integer_pow": _integer_pow,
    "sqrt": lambda x: x.call("sqrt"),
    "convert_element_type": lambda x, new_dtype: x.to(new_dtype),
    "bitcast_convert_type": lambda x, new_dtype: x.view(new_dtype),
    "copy": lambda x: x,
    "copy_p": lambda x: x,
    "stop_gradient": lambda x: x,
    "threefry2x32": lambda *words: words[0].code.function("threefry", threefry, *words),
    **FUNCTIONS,
}
"""Functions of values, and of the parameters of a primitive below."""

PARAMETERS = {
    "round": "rounding_method",
    "integer_pow": "y",
    "convert_element_type": "new_dtype",
    "bitcast_convert_type": "new_dtype",
}
"""The only parameter of a primitive that changes its values."""

_OPERATORS = "add sub mul neg and or xor not lt le gt ge".split()
_ON_INTEGERS: dict[str, Callable[..., Any]] = {
    **{name: ELEMENTWISE[name] for name in _OPERATORS},  # Python's, as for values
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "clamp": lambda low, x, high: np.minimum(np.maximum(low, x), high),
    "select_n": lambda which, *cases: cases[max(0, min(int(which), len(cases) - 1))],
    "convert_element_type": lambda x: x,
}


def known_result(name: str, dtype: np.dtype, values: list[np.generic]) -> Any:
    """Return the result for known integers, or `None` where LLVM has to find it.

    The places of elements have to be known when the instructions are written.
    """
    function = _ON_INTEGERS.get(name)
    if function is None or any(jnp.issubdtype(x.dtype, np.inexact) for x in values):
        return None
    with np.errstate(over="ignore"):
        return np.asarray(function(*values)).astype(dtype)[()]
