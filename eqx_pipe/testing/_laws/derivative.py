"""The laws of derivatives: they are finite, and agree with finite differences.

Both modes, and second derivatives, are compared with finite differences of two step
sizes, in double precision if the function can be traced in it. The two step sizes give
error bounds. If they disagree, or the slopes on both sides do, the element is a kink,
which is left out and counted. So `jax.nn.relu` at 0 raises no false alarm, nor does a
square root. Elements are compared one by one: an infinite output hides no other one.
"""

import contextlib
import functools as ft
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import jax.numpy as jnp
import numpy as np

from .law import (
    Broken,
    Programs,
    Tolerance,
    Trial,
    Undecided,
    agree,
    as_numpy,
    direction,
    error_line,
    is_absent,
    is_of_user,
    law,
)

STEPS = (-1, -0.5, 0, 0.5, 1)
"""The positions along a direction at which a function is evaluated, in steps."""

_MOST_SINGLE = 4  # up to this many inputs, each is moved separately

_COARSEST = 1e-6  # below single precision finite differences are too inaccurate

_ITERATED = 1e-2  # the relative error of an iterative solver

if TYPE_CHECKING:
    Numbers: TypeAlias = np.ndarray
else:  # NumPy operations return scalars for arrays without axes
    Numbers = np.ndarray | np.generic

T = TypeVar("T")


class Slope(NamedTuple):
    """A derivative along a direction by finite differences, element by element.

    `doubt` bounds its error, `noise` is the rounding error, and `smooth` is False at
    kinks.
    """

    value: Numbers
    doubt: Numbers
    noise: Numbers
    smooth: Numbers


def step_of(eps: float) -> float:
    """Return the step for the differences, from the rounding error `eps`."""
    # The truncation error is of order `step**4`, and the rounding error `eps / step`.
    return eps**0.2


def slope(values: Sequence[Numbers], eps: float) -> Slope:
    """Return the slope of five values at `STEPS`."""
    step, v = step_of(eps), np.stack(values)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        wide, half = (v[4] - v[0]) / (2 * step), (v[3] - v[1]) / step
        # Richardson extrapolation cancels the error of order `step**2`.
        value = (4 * half - wide) / 3
        # The slopes to the right and to the left differ by the step times the
        # curvature; a difference that remains as the step goes to zero is a kink.
        near = (v[3] - 2 * v[2] + v[1]) / (step / 2)
        far = (v[4] - 2 * v[2] + v[0]) / step
        doubt = np.abs(wide - half) + np.abs(2 * near - far)
        finite = np.isfinite(v).all(0)
        # An element that does not move, such as a mask, says nothing about the others.
        moves = finite & (v != v[2]).any(0)
        sizes = np.abs(np.where(finite, v, 0)).max(0)
        largest = np.max(np.where(moves, sizes, 0), initial=0.0)
        size = np.where(moves, largest, sizes)
        noise = eps * size / step
        trusted = doubt <= 0.02 * (np.abs(value) + size) + 1000 * noise
    return Slope(value, doubt, noise, trusted & finite)


def attempt(how: str, run: Callable[[], T]) -> tuple[T | None, str]:
    """Return a result, or `None` and the reason if JAX has no such derivative.

    Raise `Broken` for all other errors, such as those of a rule.
    """
    try:
        return run(), ""
    except Exception as error:
        if not is_absent(error):
            raise Broken(f"{how} raises {error_line(error)}") from error
        return None, error_line(error)


@law("derivative", "first and second derivatives agree with finite differences.")
def derivative_law(trial: Trial) -> str | None:
    trial = trial.wide or trial
    programs = trial.programs
    if not programs.moving or not programs.smooth:
        raise Undecided("there is nothing to differentiate")
    if "random_gamma" in programs.primitives:
        raise Undecided("derivatives of gamma draws hold in distribution only")
    eps = max((float(jnp.finfo(dtype).eps) for dtype in programs.dtypes), default=0.0)
    if not 0 < eps <= _COARSEST:
        raise Undecided("finite differences are too inaccurate in this precision")
    return _Derivatives(programs, trial.leaves, eps).check()


class _Derivatives:
    """The derivatives of a call at its arguments, along fixed directions."""

    def __init__(self, programs: Programs, leaves: list[Any], eps: float):
        self.programs, self.leaves, self.eps = programs, leaves, eps
        moving = programs.moving
        self.tangents = [direction(i, leaves[i], as_numpy(leaves[i])) for i in moving]
        n = len(moving)
        # Each input is moved separately, or all together if there are many.
        self.moved = [[k] for k in range(n)] if n <= _MOST_SINGLE else [list(range(n))]
        # Finite differences lose half of the digits.
        self.rtol = max(1e-5, eps**0.5)
        # A solver that iterates to a tolerance has an error of that size, and often its
        # own derivative rule (of the solution, not of the iterates).
        if programs.iterates:
            self.rtol = max(self.rtol, _ITERATED)
        self.plain = self.smooth_value(leaves)
        self.has_second = True  # its program also has the first derivative
        try:
            programs.second(leaves, self.tangents, programs.cotangents())
        except Exception:
            self.has_second = False
        self.nan_forward, self.nan_reverse = "", False
        self.notes: list[str] = []

    def check(self) -> str | None:
        """Raise `Broken` if a derivative is wrong; return notes on what is left out."""
        slopes = [self.slopes(self.smooth_value, self._along(k)) for k in self.moved]
        smooth = [np.all([s.smooth for s in c], 0) for c in zip(*slopes, strict=True)]
        forward, no_forward = self._forward(slopes)
        # Reverse mode is compared with forward mode, also at kinks.
        no_reverse = self._backward(slopes if forward is None else forward)
        if no_forward and no_reverse:
            reasons = f"forward: {no_forward}; reverse: {no_reverse}"
            raise Undecided(f"neither mode has a derivative ({reasons})")
        if self.nan_forward and not no_reverse and not self.nan_reverse:
            what = "forward mode is not finite, where reverse mode is"
            raise Broken(what, self.nan_forward)
        orders = {"forward mode": no_forward, "reverse mode": no_reverse}
        if not no_reverse:
            orders["second derivative"] = self._second(smooth)
            self._symbolic_zeros()
        self.notes += [f"no {how} ({why})" for how, why in orders.items() if why]
        finite = [np.isfinite(v) for v in self.plain]
        kinks = sum(int((f & ~s).sum()) for f, s in zip(finite, smooth, strict=True))
        size = sum(v.size for v in smooth)
        if kinks and not any(s.smooth.any() for row in slopes for s in row):
            raise Undecided("there are kinks everywhere, or no finite numbers nearby")
        if kinks:
            self.notes.append(f"{kinks} of {size} outputs are at kinks, and left out")
        rest = sum(int((~f).sum()) for f in finite)
        if rest:
            self.notes.append(f"{rest} of {size} outputs are not finite, and left out")
        return "; ".join(dict.fromkeys(self.notes)) or None

    def smooth_value(self, leaves: Sequence[Any]) -> list[Numbers]:
        """Return the outputs that can be differentiated."""
        values = self.programs.value(leaves)
        return [as_numpy(values[i]) for i in self.programs.smooth]

    def slopes(
        self, fn: Callable[[list[Any]], list[Numbers]], tangents: list[Numbers]
    ) -> list[Slope]:
        """Return the slopes of a function when the leaves move along tangents."""
        values = [fn(self._moved(step_of(self.eps) * at, tangents)) for at in STEPS]
        return [slope(five, self.eps) for five in zip(*values, strict=True)]

    def _moved(self, by: float, tangents: list[Numbers]) -> list[Any]:
        leaves = list(self.leaves)
        for i, tangent in zip(self.programs.moving, tangents, strict=True):
            near = np.asarray(leaves[i])
            leaves[i] = (near + by * tangent).astype(near.dtype)
        return leaves

    def _along(self, inside: list[int]) -> list[Numbers]:
        """Return the tangents, with zeros for inputs that do not move."""
        zeros = np.zeros_like
        return [t if k in inside else zeros(t) for k, t in enumerate(self.tangents)]

    def _forward(
        self, slopes: list[list[Slope]]
    ) -> tuple[list[list[Slope]] | None, str]:
        """Compare forward mode along each direction, and return its slopes.

        It returns `None` and the reason if there is no forward mode.
        """
        compared: list[list[Slope]] = []
        # The result of an iterative solver moves by the solver's error.
        sizes = [np.abs(v)[np.isfinite(v)].max(initial=0.0) for v in self.plain]
        sizes = sizes if self.programs.iterates else [0.0] * len(sizes)
        for inside, row in zip(self.moved, slopes, strict=True):
            both, why = self._tangents_along(self._along(inside))
            if both is None:
                return None, why
            value, tangents = both
            for i, (s, t) in enumerate(zip(row, tangents, strict=True)):
                blamed = self._blamed(inside, i)
                self._same("forward mode", blamed, s, t, self.rtol, sizes[i])
                if (s.smooth & ~np.isfinite(t)).any():
                    self.nan_forward = self._blamed(inside, i)
            self._same_value(value, "forward mode")
            compared.append(self._exact(tangents))
        return compared, ""

    def _tangents_along(self, tangents: list[Numbers]) -> tuple[Any, str]:
        """Return values and tangents by forward mode, or `None` and the reason."""
        run = ft.partial(self.programs.forward, self.leaves, tangents)
        return attempt("forward mode", run)

    def _exact(self, tangents: list[Numbers]) -> list[Slope]:
        """Return tangents as slopes without doubt but for the rounding of the values.

        Elements are left out if they are not finite, or if the rounding error of an
        element is larger than all tangents, as with a mask of `-1e30`.
        """
        values = [np.abs(v)[np.isfinite(v)] for v in self.plain]
        usual = float(np.median(np.concatenate(values))) if any(map(len, values)) else 0
        slopes = []
        for v, t in zip(self.plain, tangents, strict=True):
            finite = np.isfinite(t) & np.isfinite(v)
            rounding = self.eps * np.abs(np.where(finite, v, 0))
            scale = max(usual, float(np.abs(np.where(finite, t, 0)).max(initial=0.0)))
            exact = finite & (rounding <= 1e-3 * scale)
            slopes.append(Slope(t, rounding, np.zeros_like(rounding), exact))
        return slopes

    def _blamed(self, inside: list[int], output: int) -> str:
        """Return the name of the moved input, or of an output if several are moved."""
        if len(inside) == 1:
            return self.programs.moving_names[inside[0]]
        return self.programs.smooth_names[output]

    def _same_value(self, value: list, how: str) -> None:
        """Compare the outputs of a mode with those of a plain call, where finite."""
        masks = [np.isfinite(v) for v in self.plain]
        got, wanted = (
            [np.where(m, as_numpy(v), 0) for m, v in zip(masks, values, strict=True)]
            for values in (value, self.plain)
        )
        labels = (f"the value in {how}", "without a derivative")
        agree(got, wanted, labels, Tolerance(10 * self.rtol, 1e-30))

    def _reverse(self, cotangents: list[Numbers]) -> tuple[list, list]:
        """Return the outputs and gradients; one program also has second derivatives."""
        if self.has_second:
            return self.programs.second(self.leaves, self.tangents, cotangents)[0]
        return self.programs.backward(self.leaves, cotangents)

    def _backward(self, slopes: list[list[Slope]]) -> str:
        """Compare reverse mode along each direction; return why if it is absent."""
        for inside, row in zip(self.moved, slopes, strict=True):
            cotangents = self._balanced(row)
            both, why = attempt("reverse mode", lambda c=cotangents: self._reverse(c))
            if both is None:
                return why
            value, grads = both
            tangents = self._along(inside)
            finite = [np.isfinite(as_numpy(g)) for g in grads]
            grads = [np.where(f, g, 0) for g, f in zip(grads, finite, strict=True)]
            lost = sum(int((~finite[k]).sum()) for k in inside)
            self.nan_reverse |= bool(lost)
            if lost:
                # A gradient is infinite or NaN, as that of a root at 0, which the law
                # `finite` reports: compare the others.
                self.notes.append(f"{lost} elements of gradients are not finite")
                pairs = zip(tangents, finite, strict=True)
                tangents = [np.where(f, t, np.zeros_like(t)) for t, f in pairs]
                row = self._again(tangents)
                cotangents = self._weights([s.smooth for s in row], cotangents)
            # Compare the gradient along the direction with the slopes of the outputs.
            pairs = list(zip(cotangents, row, strict=True))
            with np.errstate(invalid="ignore", over="ignore"):
                left = [np.where(s.smooth, np.real(c * s.value), 0) for c, s in pairs]
                errors = [
                    np.where(s.smooth, np.abs(c) * (2 * s.doubt + 50 * s.noise), 0)
                    for c, s in pairs
                ]
            products = zip(tangents, grads, strict=True)
            right = [np.real(tangent * grad) for tangent, grad in products]
            one, other = _total(left), _total(right)
            size = _total([np.abs(v) for v in left + right])
            allowed = _total(errors) + self.rtol * size
            if not abs(one - other) <= allowed:
                what = f"reverse mode gives {other:.6g} along a direction, but finite "
                what += f"differences or forward mode give {one:.6g} (within "
                what += f"{allowed:.2g})"
                raise Broken(what, self._blamed(inside, 0))
            self._same_value(value, "reverse mode")
        return ""

    def _again(self, tangents: list[Numbers]) -> list[Slope]:
        """Return the slopes along other tangents, by forward mode if there is one."""
        both, _ = self._tangents_along(tangents)
        if both is None:
            return self.slopes(self.smooth_value, tangents)
        return self._exact(both[1])

    def _weights(
        self, smooth: list[Numbers], weights: list[Numbers] | None = None
    ) -> list[Numbers]:
        """Return cotangents that leave out some elements."""
        weights = self.programs.cotangents() if weights is None else weights
        pairs = zip(smooth, weights, strict=True)
        return [np.where(where, c, np.zeros_like(c)) for where, c in pairs]

    def _balanced(self, row: list[Slope]) -> list[Numbers]:
        """Return cotangents by which all elements contribute alike.

        A large element would hide an error of a small one.
        """
        cotangents = self._weights([s.smooth for s in row])
        least = 1.0 if self.programs.iterates else 1e-3
        for i, s in enumerate(row):
            size = np.abs(np.where(s.smooth, s.value, 0))
            largest = float(size.max(initial=0.0))
            if 1e-30 < largest < 1e30:
                scaled = cotangents[i] / np.maximum(size, least * largest)
                cotangents[i] = scaled.astype(cotangents[i].dtype)
        return cotangents

    def _second(self, smooth: list[Numbers]) -> str:
        """Compare second derivatives with finite differences of first derivatives.

        Return why there are none, if so.
        """
        programs, cotangents = self.programs, self._weights(smooth)

        def second(leaves: list[Any]) -> Any:
            return programs.second(leaves, self.tangents, cotangents)

        result, why = attempt("the second derivative", lambda: second(self.leaves))
        if result is None:
            return why
        (_, first), change = result

        slopes = self.slopes(lambda leaves: second(leaves)[0][1], self.tangents)
        for k, name in enumerate(programs.moving_names):
            # Second derivatives near zero are as accurate as the first derivatives.
            finite = np.where(np.isfinite(first[k]), np.abs(first[k]), 0)
            size, rtol = float(finite.max(initial=0.0)), 10 * self.rtol
            how = "the second derivative"
            self._same(how, name, slopes[k], change[k], rtol, size)
        return ""

    def _symbolic_zeros(self) -> None:
        """Compare gradients of one input, or of one output, with those of all.

        The others are symbolic zeros, which a rule with `symbolic_zeros=True` may
        treat in its own way.
        """
        if not any(map(_sees_zeros, self.programs.equations)):
            return
        weights = self.programs.cotangents()
        names = self.programs.moving_names
        whole = dict(zip(names, self._reverse(weights)[1], strict=True))
        labels = ("differentiated alone", "with the other arguments")
        tolerance = Tolerance(10 * self.rtol, 1e-30)
        for k, name in enumerate(names[: 2 * _MOST_SINGLE]):
            part, _ = attempt(
                f"the gradient of `{name}` alone",
                lambda k=k: self.programs.partial(self.leaves, weights, k, "input"),
            )
            agree({name: part and part[0]}, {name: whole[name]}, labels, tolerance)
        if len(weights) < 2:
            return
        of_one = ft.partial(self.programs.partial, self.leaves, weights, of="output")
        parts = [of_one(i) for i in range(len(weights))]
        total = [sum(grads) for grads in zip(*parts, strict=True)]
        labels = ("summed over gradients of single outputs", "of all outputs together")
        agree(dict(zip(names, total, strict=True)), whole, labels, tolerance)

    def _same(
        self, how: str, name: str, slope: Slope, got: Numbers, rtol: float, size: float
    ) -> None:
        value, wrong = slope.value, _wrong(slope, got, rtol, size)
        if wrong.any():
            index = tuple(np.argwhere(wrong)[0])
            at = f" at [{', '.join(map(str, index))}]" if index else ""
            what = f"{how} gives {got[index]:.6g}{at}, but finite differences give "
            what += f"{value[index]:.6g} ({wrong.sum()} of {wrong.size} elements "
            what += "differ)"
            raise Broken(what, name)


def _wrong(slope: Slope, got: Numbers, rtol: float, size: float) -> Numbers:
    """Return a mask of the elements whose derivative is wrong."""
    value, doubt, noise, smooth = slope
    size = max(size, np.abs(np.where(smooth, value, 0)).max(initial=0.0))
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = 2 * doubt + 50 * noise + rtol * (np.abs(value) + 1e-3 * size)
        # The law `finite` reports derivatives that are not finite.
        wrong = smooth & np.isfinite(got) & (np.abs(got - value) > allowed)
    return np.asarray(wrong)


def _total(terms: list[Numbers]) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return float(sum(np.sum(as_numpy(term)) for term in terms))


def _sees_zeros(eqn: Any) -> bool:
    """Return whether a rule of the user has a case for symbolic zeros."""
    return eqn.params.get("symbolic_zeros") is True and is_of_user(eqn)


@law("finite", "finite numbers give no NaN, no overflow, and finite derivatives.")
def finite_law(trial: Trial) -> str | None:
    programs, leaves = trial.programs, trial.leaves
    inputs = [v for v in leaves if jnp.issubdtype(v.dtype, jnp.inexact)]
    if not all(np.isfinite(as_numpy(v)).all() for v in inputs):
        raise Undecided("the arguments are not finite")
    values = programs.value(leaves)
    outputs = {i: as_numpy(values[i]) for i in programs.inexact}
    for i, array in outputs.items():
        _none(np.isnan(array), array, programs.out_names[i], "the output", "are NaN")
    infinite = {i: np.isinf(array) for i, array in outputs.items()}
    if any(mask.any() for mask in infinite.values()):
        _no_overflow(trial, outputs)
        for i, array in outputs.items():
            _not_everywhere(trial, i, array)
    if not programs.moving or not programs.smooth:
        return None
    masks = [infinite[i] for i in programs.smooth]
    if all(mask.all() for mask in masks):
        raise Undecided("the output is infinite, so its derivatives may be, too")
    _derivatives(trial, masks)
    count, size = sum(int(m.sum()) for m in masks), sum(m.size for m in masks)
    return f"{count} of {size} outputs are infinite, and left out" if count else None


def _none(wrong: Any, array: Any, name: str, of: str, what: str) -> None:
    """Raise `Broken` if elements of an array are wrong."""
    if wrong.any():
        count = f"{wrong.sum()} of {wrong.size} elements of {of} {what}"
        raise Broken(count.format(array[wrong][0]), name)


def _derivatives(trial: Trial, infinite: list[np.ndarray]) -> None:
    """Raise `Broken` for a derivative of the finite outputs that is not finite."""
    programs, leaves, what = trial.programs, trial.leaves, "are not finite ({})"
    pairs = zip(programs.cotangents(), infinite, strict=True)
    cotangents = [np.where(mask, np.zeros_like(c), c) for c, mask in pairs]
    grads = _tried(lambda: programs.backward(leaves, cotangents)[1])
    if grads is not None:
        named = zip(programs.moving_names, grads, strict=True)
        for k, (name, grad) in enumerate(named):
            wrong = ~np.isfinite(grad)
            if any(mask.any() for mask in infinite):
                wrong &= ~_drives(trial, k, wrong, infinite)
            _none(wrong, grad, name, "its gradient", what)
        return
    tangents = [direction(i, leaves[i]) for i in programs.moving]
    outs = _tried(lambda: programs.forward(leaves, tangents)[1]) or []
    for name, array, mask in zip(programs.smooth_names, outs, infinite, strict=False):
        wrong = ~np.isfinite(array) & ~mask
        _none(wrong, array, name, "its derivative in forward mode", what)


def _tried(run: Callable[[], list[Any]]) -> list[np.ndarray] | None:
    """Return a derivative, or `None` if it raises, as the law `derivative` reports."""
    with contextlib.suppress(Exception):
        return list(map(as_numpy, run()))
    return None


def _drives(
    trial: Trial, k: int, wrong: np.ndarray, infinite: list[np.ndarray]
) -> np.ndarray:
    """Return the elements of an input that make an output infinite.

    Their gradients may be NaN, even for a cotangent of 0. An element that moves no
    infinite output, such as a masked one, has to have a finite gradient.
    """
    programs, leaves, drives = trial.programs, trial.leaves, np.ones_like(wrong)
    for index in map(tuple, np.argwhere(wrong)[:_MOST_TRIED]):
        tangents = [np.zeros_like(leaves[i]) for i in programs.moving]
        tangents[k][index] = 1
        outs = _tried(lambda t=tangents: programs.forward(leaves, t)[1])
        if outs is not None:
            pairs = zip(outs, infinite, strict=True)
            drives[index] = any((~np.isfinite(t) & m).any() for t, m in pairs)
    return drives


_MOST_TRIED = 16


def _no_overflow(trial: Trial, outputs: dict[int, np.ndarray]) -> None:
    """Raise `Broken` if an infinite output is finite, and fits, in double precision."""
    if trial.wide is None:
        return
    wide = trial.wide.programs
    leaves = trial.wide.leaves
    pairs = zip(leaves, trial.leaves, strict=True)
    flushed = [_without_subnormals(leaf, narrow.dtype) for leaf, narrow in pairs]
    in_double, others = wide.value(leaves), wide.value(flushed)
    for i, array in outputs.items():
        exact, dtype = as_numpy(in_double[i]), trial.programs.jaxpr.out_avals[i].dtype
        size = np.maximum(np.abs(exact), np.abs(as_numpy(others[i])))
        wrong = np.isinf(array) & (size <= float(jnp.finfo(dtype).max))
        why = "are infinite, and {:.6g} in double precision: an intermediate value "
        name = trial.programs.out_names[i]
        _none(wrong, exact, name, "the output", f"{why}overflows, or rounds to 0")


def _without_subnormals(leaf: Any, dtype: Any) -> Any:
    """Return 0 for subnormal numbers of a dtype, as XLA does on most processors."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return leaf
    leaf = np.asarray(leaf)
    return np.where(np.abs(leaf) < float(jnp.finfo(dtype).tiny), leaf * 0, leaf)


def _not_everywhere(trial: Trial, i: int, array: np.ndarray) -> None:
    """Raise `Broken` if an output is infinite for all arguments."""
    if not np.isinf(array).all():
        return
    programs = trial.programs
    leaves = trial.leaves
    args = [k for k in programs.moving if programs.names[k].startswith("args")]
    for sign in (1, -1):
        others = list(leaves)
        for k in args:
            others[k] = (sign * np.abs(direction(k, leaves[k]))).astype(leaves[k].dtype)
        with contextlib.suppress(Exception):  # these arguments are invalid
            if not np.isinf(as_numpy(programs.value(others)[i])).all():
                return
    what = "it is infinite for all arguments that were tried"
    raise Broken(what, programs.out_names[i])
