"""The law that a stage has the gradients that its output promises."""

import contextlib
import dataclasses
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State
from jax.typing import DTypeLike

from ..._check import check_bool
from ..._types import Key, PyTree, StageLike
from .compare import AnyArray, Bound, Tolerance, as_numpy
from .law import Broken, law, must_work
from .report import check
from .trial import Trial, evaluate, inexact_arrays

Arrays: TypeAlias = list[AnyArray]


@law(
    "grad",
    "gradients are finite where the output is, and forward and reverse mode agree.",
)
def grad_law(trial: Trial, numerical: bool = False) -> None:
    problem = problem_of(trial)
    if problem is None:
        return
    forward = backward = None
    optional = contextlib.suppress(Exception)
    with optional:  # which a stage with a `custom_vjp` lacks
        forward = problem.forward()
    needed = must_work("reverse mode (as does forward mode)")
    with needed if forward is None else optional:
        backward = problem.backward()
    finite = all(map(_is_finite, problem.outputs))
    if forward is not None:
        _finite_forward(problem, forward, backward)
    if backward is not None and finite:
        _finite_backward(problem, backward)
    if not finite:
        return
    if forward is not None and backward is not None:
        _modes_agree(problem, forward, backward)
    if numerical and forward is not None:
        _like_differences(problem, forward)
    elif numerical and backward is not None:
        _like_differences_backward(problem, backward)


class Problem(eqx.Module):
    """Inexact inputs (parameters and input) to the inexact outputs, with directions.

    `rest` is all else that a call needs.
    """

    rest: tuple[Any, ...]
    names: list[str]
    inputs: Arrays
    out_names: list[str]
    outputs: Arrays
    tangents: Arrays
    cotangents: Arrays
    tolerance: Tolerance

    def call(self, inputs: Arrays) -> Arrays:
        """The inexact outputs."""
        structure, fixed, state, key = self.rest
        both = eqx.combine(jtu.tree_unflatten(structure, inputs), fixed)
        return inexact_arrays(evaluate(both["stage"], both["x"], state, key))[1]

    # Compiled once for all inputs of a stage.

    @eqx.filter_jit
    def forward(self) -> Arrays:
        """Tangents of the outputs."""
        return jax.jvp(self.call, (self.inputs,), (self.tangents,))[1]

    @eqx.filter_jit
    def backward(self) -> Arrays:
        """Cotangents of the inputs."""
        return jax.vjp(self.call, self.inputs)[1](self.cotangents)[0]

    def along(self, i: int) -> "Problem":
        """The problem along the direction of one input alone."""
        zeros = [jnp.zeros_like(t) for t in self.tangents]
        tangents = [*zeros[:i], self.tangents[i], *zeros[i + 1 :]]
        return dataclasses.replace(self, tangents=tangents)

    def allowed(self, dtype: DTypeLike, size: float, usual: float) -> float:
        """The caller's bound if there is one, else the usual."""
        given = (self.tolerance.rtol, self.tolerance.atol) != (None, None)
        return self.tolerance.allowed(dtype, size) if given else usual

    @property
    def coarsest(self) -> np.dtype:
        """The dtype of an input that has the fewest digits."""
        dtypes = [v.dtype for v in self.inputs]
        return max(dtypes, key=lambda dtype: float(jnp.finfo(dtype).eps))


def problem_of(trial: Trial) -> Problem | None:
    given = {"stage": trial.stage, "x": trial.x}
    moving, fixed = eqx.partition(given, eqx.is_inexact_array)
    names, inputs = inexact_arrays(moving)
    out_names, outputs = inexact_arrays(trial.plain)
    if not inputs or not outputs:
        return None
    rng = np.random.default_rng(0)
    return Problem(
        (jtu.tree_structure(moving), fixed, trial.state, trial.key),
        names,
        [jnp.asarray(leaf) for leaf in inputs],
        out_names,
        outputs,
        [_direction(rng, leaf) for leaf in inputs],
        [_direction(rng, leaf) for leaf in outputs],
        trial.tolerance,
    )


def _direction(rng: np.random.Generator, leaf: AnyArray) -> AnyArray:
    drawn = rng.normal(size=leaf.shape)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        drawn = drawn + 1j * rng.normal(size=leaf.shape)
    return jnp.asarray(drawn).astype(leaf.dtype)


def _is_finite(array: AnyArray) -> bool:
    return bool(np.isfinite(as_numpy(array)).all())


def _finite_forward(problem: Problem, tangents: Arrays, grads: Arrays | None) -> None:
    for name, y, t in zip(problem.out_names, problem.outputs, tangents, strict=True):
        wrong = np.isfinite(as_numpy(y)) & ~np.isfinite(as_numpy(t))
        if wrong.any():
            # Reverse mode, where there is one, tells the input that is to blame.
            pairs = zip(problem.names, grads or (), strict=False)
            blamed = [n for n, grad in pairs if not _is_finite(grad)]
            count = f"{int(wrong.sum())} of {wrong.size} elements"
            what = f"{count} are finite and have derivatives that are not (forward)"
            raise Broken("finite", what, [*blamed, name][0])


def _finite_backward(problem: Problem, grads: Arrays) -> None:
    for name, grad in zip(problem.names, grads, strict=True):
        wrong = ~np.isfinite(as_numpy(grad))
        if wrong.any():
            first = as_numpy(grad)[wrong][0]
            count = f"{int(wrong.sum())} of {wrong.size} elements of its gradient"
            what = f"{count} are not finite ({first}), and the output is"
            raise Broken("finite", what, name)


def _modes_agree(problem: Problem, forward: Arrays, backward: Arrays) -> None:
    what = _apart(problem, forward, backward)
    if what is None:
        return
    for i, name in enumerate(problem.names):
        alone = problem.along(i)
        if _apart(alone, alone.forward(), backward):
            raise Broken("modes", what, name)
    raise Broken("modes", what)


def _apart(problem: Problem, forward: Arrays, backward: Arrays) -> str | None:
    """By how much the two modes differ, in words; `None` if they agree."""
    left, right, size = _dots(problem, forward, backward)
    allowed = 10 * problem.tolerance.allowed(problem.coarsest, size)
    if abs(left - right) <= allowed:
        return None
    return (
        f"a directional derivative is {left:.6g} in forward mode, {right:.6g} in "
        f"reverse mode; {abs(left - right):.3g} apart, {allowed:.2g} allowed"
    )


def _dots(
    problem: Problem, forward: Arrays, backward: Arrays
) -> tuple[float, float, float]:
    """A directional derivative by each mode, and how large its terms are."""
    left, left_size = _dot(problem.cotangents, forward)
    right, right_size = _dot(backward, problem.tangents)
    return left, right, max(left_size, right_size)


def _dot(a: Arrays, b: Arrays) -> tuple[float, float]:
    """The real inner product, and the sum of its terms' sizes."""
    terms = [np.real(as_numpy(u) * as_numpy(v)) for u, v in zip(a, b, strict=True)]
    joined = np.concatenate([term.ravel() for term in terms])
    return float(joined.sum()), float(np.abs(joined).sum())


def _like_differences(problem: Problem, forward: Arrays) -> None:
    """Whether the derivative along a direction is a central difference, about."""
    differences, scales, step = _differences(problem)
    found = zip(problem.out_names, forward, differences, scales, strict=True)
    for name, t, numeric, scale in found:
        apart = np.max(np.abs(numeric - as_numpy(t)), initial=0.0)
        size = float(np.max(np.abs(as_numpy(t)), initial=0.0))
        allowed = problem.allowed(t.dtype, size, _usual(step, scale + size))
        _close(name, apart, step, allowed)


def _like_differences_backward(problem: Problem, backward: Arrays) -> None:
    """The same by reverse mode, for each input by itself."""
    for i, name in enumerate(problem.names):
        alone = problem.along(i)
        differences, scales, step = _differences(alone)
        left, right, size = _dots(alone, differences, backward)
        usual = sum(
            np.abs(as_numpy(v)).sum() * _usual(step, scale + np.max(np.abs(d)))
            for v, d, scale in zip(problem.cotangents, differences, scales, strict=True)
            if d.size
        )
        allowed = problem.allowed(problem.inputs[i].dtype, size, usual)
        _close(name, abs(left - right), step, allowed)


def _differences(problem: Problem) -> tuple[Arrays, list[float], float]:
    """The outputs' central differences, how large the outputs are, and the step."""
    # Where the error of a central difference, step^2, is as large as rounding, eps /
    # step.
    step = float(jnp.finfo(problem.coarsest).eps) ** (1 / 3)

    def outputs(signed: float) -> list[np.ndarray]:
        moved: Arrays = [
            jnp.asarray((as_numpy(v) + signed * as_numpy(t)).astype(v.dtype))
            for v, t in zip(problem.inputs, problem.tangents, strict=True)
        ]
        return [as_numpy(v) for v in problem.call(moved)]

    high, low = outputs(step), outputs(-step)
    differences = [(h - v) / (2 * step) for h, v in zip(high, low, strict=True)]
    return differences, [float(np.max(np.abs(h), initial=1.0)) for h in high], step


def _usual(step: float, size: float) -> float:
    # The error goes with the square of the step, the rounding with what is left.
    return 20 * step * min(1.0, 10 * step) * size


def _close(name: str, apart: float, step: float, allowed: float) -> None:
    if not apart <= allowed:
        what = (
            f"the derivative is {apart:.3g} away from a central difference of step "
            f"{step:.2g}; {allowed:.2g} allowed"
        )
        raise Broken("numerical", what, name)


def check_grad(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
    numerical: bool = False,
) -> None:
    """Checks the derivatives of a stage by its input and its parameters.

    They are finite wherever the output is, and forward and reverse mode agree along a
    direction, where both exist.

    **Arguments:** those of `check_stage`, and

    - `numerical`: whether to compare with central differences, too: forward mode, or
        reverse mode where the stage has no other, as with a `custom_vjp`. This gives
        false alarms at kinks, for `stop_gradient`, and in low precision. (Keyword
        only.)

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> ept.check_grad(jnp.linalg.norm, jnp.zeros(3))
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_grad`: the law `grad` is broken: ...
    """
    __tracebackhide__ = True
    check_bool("testing.check_grad", "numerical", numerical)
    check(grad_law, stage, x, state, key, rtol, atol, numerical=numerical)
