"""Elementary functions: exponentials, logarithms, powers, trigonometry.

For `float32` they are computed in `float64`, by polynomials that vectorize, and rounded
once: the 29 more bits make up for all rounding on the way, so no result is off by more
than 0.51 units in the last place, and no table or correction is needed. XLA's own, in
`float32`, are off by up to 2. The functions that loops seldom call, and all functions
of `float64`, are those of C's library, which is kept by others and called lane by lane:
in `float64` such tricks would need twice the numbers.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from .llvm import Value

_F64 = np.dtype("float64")
_LN2 = math.log(2)
# Adding it to a double rounds to an integer, which is then in the last bits.
_ROUNDER = 1.5 * 2.0**52


def _in_double(function: Callable[..., Value], name: str) -> Callable[..., Value]:
    """Return a function that computes `float32` in `float64`, others by C's library."""

    def run(*values: Value) -> Value:
        if values[0].dtype == _F64:
            return values[0].code.library(name, *values)
        return function(*(v.to(_F64) for v in values)).to(values[0].dtype)

    return run


def _of_library(name: str) -> Callable[..., Value]:
    def call(*values: Value) -> Value:
        return values[0].code.library(name, *values)

    return _in_double(call, name)


def _polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Evaluate a polynomial, whose highest coefficient comes first."""
    total = x.like(coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def _bounded(x: Value, limit: float) -> Value:
    """Clip to `-limit` and `limit`, and keep NaN."""
    x = (x > limit).where(limit, x)
    return (x < -limit).where(-limit, x)


def _nearest(x: Value) -> tuple[Value, Value]:
    """Return the nearest integer, as a double and as bits that end with it."""
    moved = x + _ROUNDER
    return moved - _ROUNDER, moved.view("int64")


# The Taylor series of (exp(x) - 1) / x, for |x| < 0.35.
_EXP = [1 / math.factorial(k) for k in range(11, 0, -1)]


def _exp_parts(x: Value) -> tuple[Value, Value]:
    """Return `2**n` and `exp(r) - 1`, where `x` is `n * log(2) + r`."""
    x = _bounded(x, 250.0)  # both ends are beyond the range of `float32`
    n, bits = _nearest(x * (1 / _LN2))
    r = x - n * _LN2
    scale = ((bits + 1023) * 2**52).view(_F64)
    return scale, r * _polynomial(r, _EXP)


def _exp(x: Value) -> Value:
    scale, rest = _exp_parts(x)
    return scale * rest + scale


def _expm1(x: Value) -> Value:
    scale, rest = _exp_parts(x)
    return scale * rest + (scale - 1)


# The series of atanh(s) / s in s squared, for |s| < 0.172.
_ATANH = [1 / k for k in range(15, 0, -2)]


def _log_of(x: Value, offset: Value | None = None) -> Value:
    """Return the logarithm of a positive, finite number.

    `offset` is `x - 1`, if it is known more exactly.
    """
    start = int(np.float64(math.sqrt(0.5)).view(np.int64))
    bits = x.view("int64")
    # The exponent for a mantissa from the square root of 1/2 to that of 2.
    exponent = x.code.op("ashr", bits - start, bits.like(52))
    mantissa = (bits - exponent * 2**52).view(_F64)
    f = mantissa - 1
    if offset is not None:
        f = exponent.equals(0).where(offset, f)
    s = f / (f + 2)
    return exponent.to(_F64) * _LN2 + 2 * s * _polynomial(s * s, _ATANH)


def _at_edges(x: Value, result: Value) -> Value:
    """Correct a logarithm of 0, of negative numbers, of infinity and of NaN."""
    result = (x < math.inf).where(result, x)
    result = x.equals(0).where(-math.inf, result)
    return (x < 0).where(math.nan, result)


def _log(x: Value) -> Value:
    return _at_edges(x, _log_of(x))


def _log1p(x: Value) -> Value:
    return _at_edges(x + 1, _log_of(x + 1, offset=x))


def _tanh(x: Value) -> Value:
    e = _expm1(2 * _bounded(x, 20.0))
    return e / (e + 2)


def _logistic(x: Value) -> Value:
    return 1 / (_exp(-x) + 1)


def _exp2(x: Value) -> Value:
    return _exp(x * _LN2)


def _sinh(x: Value) -> Value:
    e = _expm1(x)
    return (e + e / (e + 1)) * 0.5


def _cosh(x: Value) -> Value:
    e = _exp(x)
    return (e + 1 / e) * 0.5


def _pow(x: Value, y: Value) -> Value:
    size = x.call("fabs")
    exponent = y * _log(size)
    result = _exp(size.equals(1).where(0.0, exponent))
    # The sign of a negative base: an odd integer keeps it, other integers drop it.
    half = y * 0.5
    is_integer = y.call("trunc").equals(y)
    is_odd = is_integer & ~half.call("trunc").equals(half)
    negative = x.view("int64") < 0
    result = (negative & is_odd).where(-result, result)
    infinite = size.equals(math.inf)
    result = ((x < 0) & ~is_integer & ~infinite).where(math.nan, result)
    return (y.equals(0) | x.equals(1)).where(1.0, result)


# The half of pi in three parts, of which the first two have 33 bits each.
_HALF_PI = (
    1.57079632673412561417e00,
    6.07710050630396597660e-11,
    2.02226624879595063154e-21,
)
_SIN = [(-1) ** k / math.factorial(2 * k + 1) for k in range(7, 0, -1)]
_COS = [(-1) ** k / math.factorial(2 * k) for k in range(8, 0, -1)]
_MOST_TURNS = 2.0**19


def _sin_and_cos(x: Value) -> tuple[Value, Value]:
    """Return sine and cosine, up to a number of turns for which this is exact."""
    n, bits = _nearest(x * (2 / math.pi))
    r = x
    for part in _HALF_PI:
        r = r - n * part
    z = r * r
    sin = r + r * z * _polynomial(z, _SIN)
    cos = z * _polynomial(z, _COS) + 1
    swap = (bits & 1).compare("ne", 0)
    sin, cos = swap.where(cos, sin), swap.where(sin, cos)
    negative_sin = (bits & 2).compare("ne", 0)
    negative_cos = ((bits + 1) & 2).compare("ne", 0)
    return negative_sin.where(-sin, sin), negative_cos.where(-cos, cos)


def _periodic(name: str, of: Callable[[Value, Value], Value]) -> Callable[..., Value]:
    """Return a function of sine and cosine; C's library computes it far from 0."""

    def run(x: Value) -> Value:
        code = x.code
        result = of(*_sin_and_cos(x))
        size = x.call("fabs")
        far = (size > _MOST_TURNS) & (size < math.inf)
        slot = code.allocate(result.type)
        code.emit(f"store {result}, ptr {slot}")
        with code.only_if(code.any(far)):
            # A number per lane whose result is not used costs a call as well.
            other = far.where(code.library(name, far.where(x, 0.0)), result)
            code.emit(f"store {other}, ptr {slot}")
        return result.changed(text=code.register(f"load {result.type}, ptr {slot}"))

    return run


# M. Giles, "Approximating the erfinv function" (2012), in single precision.
_ERF_INV_CENTRE = [
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
]  # fmt: skip
_ERF_INV_TAIL = [
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
]  # fmt: skip


def _erf_inv_once(x: Value) -> Value:
    w = -_log1p(-(x * x))
    far = w >= 5.0
    z = far.where(w.call("sqrt") - 3.0, w - 2.5)
    tail, centre = _polynomial(z, _ERF_INV_TAIL), _polynomial(z, _ERF_INV_CENTRE)
    result = far.where(tail, centre) * x
    return x.call("fabs").equals(1).where(x * math.inf, result)


def rem(x: Value, y: Value) -> Value:
    """Return the remainder with the sign of `x`, which is exact in `float64`."""
    return _of_library("fmod")(x, y)


exp = _in_double(_exp, "exp")
exp2 = _in_double(_exp2, "exp2")
expm1 = _in_double(_expm1, "expm1")
log = _in_double(_log, "log")
log1p = _in_double(_log1p, "log1p")
pow = _in_double(_pow, "pow")
tanh = _in_double(_tanh, "tanh")
sinh = _in_double(_sinh, "sinh")
cosh = _in_double(_cosh, "cosh")
sin = _in_double(_periodic("sin", lambda s, c: s), "sin")
cos = _in_double(_periodic("cos", lambda s, c: c), "cos")
tan = _in_double(_periodic("tan", lambda s, c: s / c), "tan")


def logistic(x: Value) -> Value:
    """Return `1 / (1 + exp(-x))`."""
    if x.dtype == _F64:
        return 1 / (exp(-x) + 1)
    return _logistic(x.to(_F64)).to(x.dtype)


def erf_inv(x: Value) -> Value:
    """Return the inverse of the error function."""
    if x.dtype != _F64:
        return _erf_inv_once(x.to(_F64)).to(x.dtype)
    raise NotImplementedError


FUNCTIONS: tuple[str, ...] = (
    "exp", "exp2", "expm1", "log", "log1p", "pow", "tanh", "sinh", "cosh", "sin", "cos",
    "tan", "logistic", "erf_inv",
    *(_LIBRARY := ("asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh", "cbrt",
    "erf", "erfc", "lgamma")),
)  # fmt: skip
"""The primitives with a function of the same name here."""
globals().update({_name: _of_library(_name) for _name in _LIBRARY})

LIBRARY: tuple[str, ...] = (*FUNCTIONS, "fmod")
