"""Elementary functions: exponentials, logarithms, powers, trigonometry.

For `float32` they are computed in `float64`, by polynomials that vectorize, and rounded
once: the 29 more bits make up for all rounding on the way, so results are off by at
most 0.51 units in the last place, and no tables or corrections are needed. XLA's own,
in `float32`, are off by 1 to 4. Functions that loops seldom call, and all of `float64`,
are those of C's library, which is kept by others and called lane by lane.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from .llvm import Value, shift

_F64 = np.dtype("float64")
_LN2 = math.log(2)
# Adding it to a double rounds to an integer, which is then in the last bits.
_ROUNDER = 1.5 * 2.0**52


def _polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Evaluate a polynomial, whose highest coefficient comes first."""
    total = x.like(coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def _bounded(x: Value, limit: float) -> Value:
    """Clip to `-limit` and `limit`, and keep NaN."""
    x = (x > limit).where(x.like(limit), x)
    return (x < -limit).where(x.like(-limit), x)


def _same_zero(x: Value, result: Value) -> Value:
    """Return zeros as they are, which have a sign."""
    return x.equals(0).where(x, result)


def _nearest(x: Value) -> tuple[Value, Value]:
    """Return the nearest integer, as a double and as bits that end with it."""
    moved = x + _ROUNDER
    return moved - _ROUNDER, moved.view("int64")


# The Taylor series of (exp(x) - 1) / x, for |x| < 0.35.
_EXP = [1 / math.factorial(k) for k in range(9, 0, -1)]


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
    return _same_zero(x, scale * rest + (scale - 1))


# The series of atanh(s) / s in s squared, for |s| < 0.172.
_ATANH = [1 / k for k in range(13, 0, -2)]


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
    result = x.equals(0).where(x.like(-math.inf), result)
    return (x < 0).where(x.like(math.nan), result)


def _log(x: Value) -> Value:
    return _at_edges(x, _log_of(x))


def _log1p(x: Value) -> Value:
    return _same_zero(x, _at_edges(x + 1, _log_of(x + 1, offset=x)))


def _tanh(x: Value) -> Value:
    e = _expm1(2 * _bounded(x, 20.0))
    return e / (e + 2)


def _sinh(x: Value) -> Value:
    e = _expm1(x.call("fabs"))
    return ((e + e / (e + 1)) * 0.5).call("copysign", x)


def _cosh(x: Value) -> Value:
    e = _exp(x)
    return (e + 1 / e) * 0.5


def _pow(x: Value, y: Value) -> Value:
    size = x.call("fabs")
    result = _exp(size.equals(1).where(y.like(0), y * _log(size)))
    # An odd exponent keeps the sign of the base, another integer drops it.
    is_integer = y.call("trunc").equals(y)
    is_odd = is_integer & (y * 0.5).call("trunc").compare("ne", y * 0.5)
    result = ((x.view("int64") < 0) & is_odd).where(-result, result)
    finite = size < math.inf
    result = ((x < 0) & ~is_integer & finite).where(x.like(math.nan), result)
    return (y.equals(0) | x.equals(1)).where(x.like(1), result)


# Pi in three parts, of which the first two have 33 bits each.
_PI = (3.1415926534682512, 1.2154201012607932e-10, 4.044532497591901e-21)
_SIN = [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)]
_FAR = 2.0**19  # so many half turns times the first parts are exact


def _sin_after(x: Value, turn: float) -> Value:
    """Return the sine of `x + turn * pi` for an `x` that is not far from 0."""
    n, bits = _nearest(x * (1 / math.pi) + turn)
    r, half_turns = x, n - turn
    for part in _PI:
        r = r - half_turns * part
    sin = r * _polynomial(r * r, _SIN)
    odd = shift("shl", bits, bits.like(63))  # the sign of the result
    return (sin.view("int64") ^ odd).view(_F64)


def _periodic(name: str, near: Callable[[Value], Value]) -> Callable[..., Value]:
    """Return a function that is computed by C's library far from 0."""

    def run(x: Value) -> Value:
        return x.code.patched(near(x), x.call("fabs") > _FAR, _in_c(name), x)

    return run


def _fmod(x: Value, y: Value) -> Value:
    # Numbers of `float32` have 24 bits, so the product has no more than 53.
    n = (x / y).call("trunc")
    far = ~((n.call("fabs") < 2.0**27) & (y.call("fabs") < math.inf))
    result = (x - n * y).call("copysign", x)
    return x.code.patched(result, far, _in_c("fmod"), x, y)


# M. Giles, "Approximating the erfinv function" (2012), in double precision, for
# w = -log(1 - x**2) up to 6.25, up to 16, and beyond.
_ERF_INV = (
    [-3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18,
     1.115787767802518096e-17, -1.333171662854620906e-16, 2.0972767875968561637e-17,
     6.6376381343583238325e-15, -4.0545662729752068639e-14, -8.1519341976054721522e-14,
     2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
     1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08,
     4.2347877827932403518e-07, -1.3654692000834678645e-06, -1.3882523362786468719e-05,
     1.867342080340571352e-04, -7.4070253416626697512e-04, -6.0336708714301490533e-03,
     2.4015818242558961693e-01, 1.6536545626831027356],
    [2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07,
     1.8239629214389227755e-08, 1.5027403968909827627e-06, -4.013867526981545969e-06,
     2.9234449089955446044e-06, 1.2475304481671778723e-05, -4.7318229009055733981e-05,
     6.8284851459573175448e-05, 2.4031110387097893999e-05, -3.550375203628474796e-04,
     9.5328937973738049703e-04, -1.6882755560235047313e-03, 2.4914420961078508066e-03,
     -3.7512085075692412107e-03, 5.370914553590063617e-03, 1.0052589676941592334,
     3.0838856104922207635],
    [-2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09,
     -3.7894654401267369937e-09, 7.6157012080783393804e-09, -1.4960026627149240478e-08,
     2.9147953450901080826e-08, -6.7711997758452339498e-08, 2.2900482228026654717e-07,
     -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
     7.5995277030017761139e-05, -2.1503011930044477347e-04, -1.3871931833623122026e-04,
     1.0103004648645343977, 4.8499064014085844221],
)  # fmt: skip


def _erf_inv(x: Value) -> Value:
    near, tail, far_tail = _ERF_INV
    w = -_log1p(-(x * x))
    far = w >= 6.25

    def in_tail(w: Value) -> Value:
        root = w.call("sqrt")
        of_tail = _polynomial(root - 3.25, tail)
        return (w >= 16).where(_polynomial(root - 5, far_tail), of_tail)

    result = x.code.patched(_polynomial(w - 3.125, near), far, in_tail, w) * x
    return x.call("fabs").equals(1).where(x * math.inf, result)


def _in_c(name: str) -> Callable[..., Value]:
    return lambda *values: values[0].code.libm(name, *values)


def _in_double(name: str, function: Callable[..., Value]) -> Callable[..., Value]:
    """Return a function that computes in `float64` and rounds to the dtype."""

    def rounded(*xs: Value) -> Value:
        return function(*(x.to(_F64) for x in xs)).to(xs[0].dtype)

    def run(*xs: Value) -> Value:
        if any(
            x.number is not None for x in xs
        ):  # an exponent, of which LLVM makes use
            return rounded(*xs)
        return xs[0].code.function(name, lambda *ys: [rounded(*ys)], *xs)[0]

    return run


def _either(
    name: str, of_float64: Callable[..., Value], of_float32: Callable[..., Value]
) -> Callable[..., Value]:
    rounded = _in_double(name, of_float32)

    def run(*xs: Value) -> Value:
        if xs[0].dtype == _F64:
            return of_float64(*(x.to(_F64) for x in xs))  # exponents may be integers
        return rounded(*xs)

    return run


_POLYNOMIALS: dict[str, Callable[..., Value]] = {
    "exp": _exp,
    "exp2": lambda x: _exp(x * _LN2),
    "expm1": _expm1,
    "log": _log,
    "log2": lambda x: _log(x) * (1 / _LN2),
    "log1p": _log1p,
    "pow": _pow,
    "tanh": _tanh,
    "sinh": _sinh,
    "cosh": _cosh,
    "fmod": _fmod,
    "sin": _periodic("sin", lambda x: _sin_after(x, 0.0)),
    "cos": _periodic("cos", lambda x: _sin_after(x, 0.5)),
    "tan": _periodic("tan", lambda x: _sin_after(x, 0.0) / _sin_after(x, 0.5)),
}
# `lgamma` also writes a sign where all threads share it, which nothing here reads.
_IN_C = "asin acos atan atan2 asinh acosh atanh cbrt erf erfc lgamma".split()

FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{n: _either(n, _in_c(n), of) for n, of in _POLYNOMIALS.items()},
    **{n: _in_double(n, _in_c(n)) for n in _IN_C},
    "logistic": _either(
        "logistic",
        lambda x: 1 / (_in_c("exp")(-x) + 1),
        lambda x: 1 / (_exp(-x) + 1),
    ),
    "rsqrt": _in_double("rsqrt", lambda x: 1 / x.call("sqrt")),
    "erf_inv": _in_double("erf_inv", _erf_inv),
}
"""Functions of values, by the name of JAX's primitive or of C's function."""


def threefry(k1: Value, k2: Value, x: Value, y: Value) -> list[Value]:
    """Return two words of the generator of Salmon et al. (2011), in 20 rounds."""
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    keys = [k1, k2, k1 ^ k2 ^ 0x1BD11BDA]
    x, y = x + k1, y + k2
    for turn in range(5):
        for by in rotations[turn % 2]:
            x = x + y
            y = x ^ (shift("shl", y, y.like(by)) | shift("lshr", y, y.like(32 - by)))
        x = x + keys[(turn + 1) % 3]
        y = y + keys[(turn + 2) % 3] + (turn + 1)
    return [x, y]
