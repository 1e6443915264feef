"""The law that derivatives agree with finite differences.

Both modes, and second derivatives, are compared with finite differences of two step
sizes, in double precision if the function can be traced in it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._jaxprs import equations, open_jaxpr, used_inputs
from .compare import Tolerance, agree, as_numpy
from .law import Broken, Undecided, law
from .programs import Programs
from .slopes import STEPS, Numbers, Slope, direction, slope, step_of
from .trial import Trial

_MOST_SINGLE = 4  # up to this many inputs, each is moved separately
_COARSEST = 1e-6  # below single precision finite differences are too inaccurate
_ITERATED = 1e-2  # the relative error of an iterative solver


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
    return _Derivatives(programs, programs.leaves(trial.call), eps).check()


class _Derivatives:
    """The derivatives of a call at its arguments, along fixed directions."""

    def __init__(self, programs: Programs, leaves: list[Any], eps: float):
        self.programs, self.leaves, self.eps = programs, leaves, eps
        self.tangents = [
            direction(i, leaves[i], scaled_by=as_numpy(leaves[i]))
            for i in programs.moving
        ]
        n = len(programs.moving)
        # Each input is moved separately, or all together if there are many.
        self.moved = [[k] for k in range(n)] if n <= _MOST_SINGLE else [list(range(n))]
        # Finite differences lose half of the digits.
        self.rtol = max(1e-5, eps**0.5)
        # A solver that iterates to a tolerance has an error of that size, and often its
        # own derivative rule (of the solution, not of the iterates).
        if _iterates(programs.jaxpr):
            self.rtol = max(self.rtol, _ITERATED)

    def check(self) -> str | None:
        """Raise `Broken` if a derivative is wrong; return a note on kinks."""
        slopes = [self.slopes(self.smooth_value, inside) for inside in self.moved]
        plain = self.smooth_value(self.leaves)
        forward = self._forward(plain, slopes)
        smooth = [np.all([s.smooth for s in c], 0) for c in zip(*slopes, strict=True)]
        # Reverse mode is compared with forward mode, also at kinks.
        known = slopes if forward is None else forward
        backward = self._backward(plain, known)
        if forward is None and not backward:
            raise Undecided("neither mode has a derivative")
        if backward:
            self._second(smooth)
        count, size = sum(int((~v).sum()) for v in smooth), sum(v.size for v in smooth)
        if count and not any(s.smooth.any() for row in slopes for s in row):
            raise Undecided("there are kinks everywhere, or no finite numbers nearby")
        return (
            f"{count} of {size} outputs are at kinks, and left out" if count else None
        )

    def smooth_value(self, leaves: Sequence[Any]) -> list[Numbers]:
        """Return the outputs that can be differentiated."""
        values = self.programs.value(leaves)
        return [values[i] for i in self.programs.smooth]

    def slopes(
        self, fn: Callable[[list[Any]], list[Numbers]], inside: list[int]
    ) -> list[Slope]:
        """Return the slopes of a function when the leaves `inside` are moved."""
        values = [fn(self._moved(step_of(self.eps) * at, inside)) for at in STEPS]
        return [slope(five, self.eps) for five in zip(*values, strict=True)]

    def _moved(self, by: float, inside: list[int]) -> list[Any]:
        leaves = list(self.leaves)
        for k in inside:
            place = self.programs.moving[k]
            near = np.asarray(leaves[place])
            leaves[place] = (near + by * self.tangents[k]).astype(near.dtype)
        return leaves

    def _along(self, inside: list[int]) -> list[Numbers]:
        """Return the tangents, with zeros for inputs that do not move."""
        zeros = np.zeros_like
        return [t if k in inside else zeros(t) for k, t in enumerate(self.tangents)]

    def _forward(
        self, plain: list[Numbers], slopes: list[list[Slope]]
    ) -> list[list[Slope]] | None:
        """Compare forward mode along each direction, and return its slopes.

        It returns `None` if there is no forward mode.
        """
        compared: list[list[Slope]] = []
        for inside, row in zip(self.moved, slopes, strict=True):
            try:
                value, found = self.programs.forward(self.leaves, self._along(inside))
            except Exception:
                return None
            for i, (s, t) in enumerate(zip(row, found, strict=True)):
                self._same("forward mode", self._blamed(inside, i), s, t, self.rtol)
            self._same_value(value, plain, "forward mode")
            # Each value has a rounding error, and so has its derivative.
            roundings = [self.eps * np.abs(as_numpy(v)) for v in plain]
            compared.append(
                [
                    Slope(t, rounding, np.zeros_like(rounding), np.isfinite(t))
                    for t, rounding in zip(found, roundings, strict=True)
                ]
            )
        return compared

    def _blamed(self, inside: list[int], output: int) -> str:
        """Return the name of the moved input, or of an output if several are moved."""
        if len(inside) == 1:
            return self.programs.moving_names[inside[0]]
        return self.programs.smooth_names[output]

    def _same_value(self, got: list, wanted: list, how: str) -> None:
        """Compare the outputs of a mode with those of a plain call."""
        kept = [i for i, v in enumerate(wanted) if np.isfinite(as_numpy(v)).all()]
        got, wanted = ([as_numpy(v[i]) for i in kept] for v in (got, wanted))
        labels = (f"the value in {how}", "without a derivative")
        agree(got, wanted, labels, Tolerance(10 * self.rtol, 1e-30))

    def _backward(self, plain: list[Numbers], known: list[list[Slope]]) -> bool:
        """Compare reverse mode along each direction; return whether it exists."""
        for inside, row in zip(self.moved, known, strict=True):
            cotangents = self._weights([s.smooth for s in row])
            try:
                value, grads = self.programs.backward(self.leaves, cotangents)
            except Exception:
                return False
            self._same_dots(inside, row, cotangents, grads)
            self._same_value(value, plain, "reverse mode")
        return True

    def _weights(self, smooth: list[Numbers]) -> list[Numbers]:
        """Return cotangents that leave out some elements."""
        weights = zip(smooth, self.programs.cotangents(), strict=True)
        return [np.where(where, c, np.zeros_like(c)) for where, c in weights]

    def _same_dots(
        self,
        inside: list[int],
        known: list[Slope],
        cotangents: list[Numbers],
        grads: list[Numbers],
    ) -> None:
        """Compare a gradient along a direction with the slopes of the outputs."""
        pairs = list(zip(cotangents, known, strict=True))
        with np.errstate(invalid="ignore", over="ignore"):
            left = [np.where(s.smooth, np.real(c * s.value), 0) for c, s in pairs]
            doubts = [np.abs(c) * (2 * s.doubt + 50 * s.noise) for c, s in pairs]
            errors = [
                np.where(s.smooth, v, 0) for v, s in zip(doubts, known, strict=True)
            ]
        products = zip(self._along(inside), grads, strict=True)
        right = [np.real(tangent * grad) for tangent, grad in products]
        one, other = _total(left), _total(right)
        size = _total([np.abs(v) for v in left + right])
        allowed = _total(errors) + self.rtol * size
        # The law `finite` reports gradients that are not finite.
        if np.isfinite(other) and not abs(one - other) <= allowed:
            raise Broken(
                f"reverse mode gives {other:.6g} along a direction, but finite "
                f"differences or forward mode give {one:.6g} (within {allowed:.2g})",
                self._blamed(inside, 0),
            )

    def _second(self, smooth: list[Numbers]) -> None:
        """Compare second derivatives with finite differences of first derivatives."""
        programs, every = self.programs, list(range(len(self.tangents)))
        cotangents = self._weights(smooth)
        try:
            found = programs.second(self.leaves, self.tangents, cotangents)
        except Exception:  # there is no second derivative
            return

        def gradient(leaves: list[Any]) -> list[Numbers]:
            return programs.backward(leaves, cotangents)[1]

        slopes, first = self.slopes(gradient, every), gradient(self.leaves)
        for k, name in enumerate(programs.moving_names):
            # Second derivatives near zero are as accurate as the first derivatives.
            finite = np.where(np.isfinite(first[k]), np.abs(first[k]), 0)
            size, rtol = float(finite.max(initial=0.0)), 10 * self.rtol
            how = "the second derivative"
            self._same(how, name, slopes[k], found[k], rtol, size)

    def _same(
        self,
        how: str,
        name: str,
        slope: Slope,
        got: Numbers,
        rtol: float,
        size: float = 0.0,
    ) -> None:
        value, wrong = slope.value, _wrong(slope, got, rtol, size)
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0])
            at = f" at [{', '.join(map(str, place))}]" if place else ""
            raise Broken(
                f"{how} gives {got[place]:.6g}{at}, but finite differences give "
                f"{value[place]:.6g} ({wrong.sum()} of {wrong.size} elements differ)",
                name,
            )


def _wrong(slope: Slope, got: Numbers, rtol: float, size: float = 0.0) -> Numbers:
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


def _iterates(jaxpr: Any) -> bool:
    """Return whether a loop ends by a computed condition, not after a fixed count."""
    for eqn in equations(jaxpr):
        if eqn.primitive.name == "while":
            test = eqn.params["cond_jaxpr"]
            read = zip(open_jaxpr(test)[0].invars, used_inputs(test), strict=True)
            dtypes = [v.aval.dtype for v, is_read in read if is_read]
            if not all(jnp.issubdtype(dtype, jnp.integer) for dtype in dtypes):
                return True
    return False
