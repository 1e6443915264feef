"""Each law of a function or stage as a test of its own."""

import functools as ft
from collections.abc import Callable, Collection, Mapping
from typing import Any

import hypothesis as hp
from jax.typing import DTypeLike

from ..._types import PyTree
from .._laws.compare import check_reference
from .._laws.function import FUNCTION_LAWS
from .._laws.law import skipped_of
from .._strategies.arrays import Numbers
from .find import arguments_of
from .laws import try_on
from .refusals import Calls, Refusals, checked_refusals
from .signature import signature_of, split
from .snippet import add_snippet
from .typed import Override, named_like, returning

RETURNS = "returns"
"""The test that is no law: that of `given_typed`."""


def laws(
    fn: Callable[..., Any] | None = None,
    *,
    skip: Collection[str] = (),
    reference: Callable[..., PyTree] | None = None,
    elements: Numbers | None = None,
    shapes: Mapping[str, str] | str | None = None,
    max_shapes: int | None = 4,
    min_size: int = 1,
    dtypes: Collection[DTypeLike] = (),
    refusals: Refusals = None,
    **overrides: Override,
) -> Callable[..., Any]:
    """Makes a function or stage a suite for pytest, with a test for each law.

    `test_norm = laws(norm)`, or `@laws` above a function whose name is a test's, gives
    `test_norm[returns]`, `test_norm[jit]`, `test_norm[grad]` and so on: each searches
    for arguments that break one law, and is found, chosen (`pytest -k jit`) and
    reported by itself. `returns` is the test of `given_typed`; the others are the laws
    of `check_function`, for the arrays among the arguments, where `fn` does not raise:
    that is told by `returns` alone. `key` is there if an argument has that name, and
    `reference` if one is given. The failing example is added to the error as code that
    runs.

    Each is a hypothesis test: put `@hypothesis.settings(...)` above. Two profiles come
    with the package, both without a deadline, since compiling is slow:
    `pytest --hypothesis-profile=eqx_pipe-ci` tries 20 examples, always the same, and
    `eqx_pipe-thorough` 300, others each time.

    **Arguments:**

    - `fn`: a function with annotations, a module, or a pipeline.
    - `skip`: names of laws to leave out. (Keyword only.)
    - `reference`: a function of the same arguments that gives the same numbers, such
        as one of NumPy. (Keyword only.)
    - `max_shapes`: how many combinations of shapes and dtypes are tried at most, as
        each compiles some programs for each law; `None` for any. (Keyword only.)
    - `elements`, `shapes`, `min_size`, `dtypes`, `refusals`, `overrides`: as in
        `given_typed`. (Keyword only.)

    **Returns:** a test for pytest, with one parameter, `law`; it needs pytest.

    **Raises:** `ImportError` without pytest; what `given_typed` raises.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax.numpy as jnp
        >>> from jaxtyping import Array, Float
        >>> def unit(x: Float[Array, " n"]) -> Float[Array, " n"]:
        ...     return x / jnp.linalg.norm(x)
        >>> test_unit = ept.laws(unit, skip=("sharding",))
        >>> test_unit("struct")  # pytest calls it with each law in turn
    """
    try:
        import pytest
    except ImportError as error:
        raise ImportError(
            "`eqx_pipe.testing.laws` needs pytest. Install it by `pip install pytest`; "
            "`given_typed(fn, laws=...)` does without."
        ) from error
    given = {"elements": elements, "shapes": shapes, "max_shapes": max_shapes}
    given |= {"min_size": min_size, "dtypes": dtypes, "refusals": refusals, **overrides}
    if fn is None:
        return ft.partial(laws, skip=skip, reference=reference, **given)
    check_reference("testing.laws", reference)
    names = [RETURNS, *FUNCTION_LAWS]
    skipped = skipped_of("testing.laws", skip, names)
    if "key" not in signature_of(fn).parameters:
        names.remove("key")
    if reference is None:
        names.remove("reference")
    call = Calls(fn, checked_refusals("laws", refusals))
    run = returning(fn, call)

    @pytest.mark.parametrize("law", [name for name in names if name not in skipped])
    @hp.given(arguments=arguments_of(fn, **given))
    def test(law: str, arguments: dict[str, Any]) -> None:
        __tracebackhide__ = True
        if law == RETURNS:
            run(arguments)
            return
        with add_snippet(fn, *split(fn, arguments)):
            try:
                call(arguments)
            except Exception:
                if RETURNS in skipped:
                    raise
                hp.reject()  # once is enough to be told
            try_on(FUNCTION_LAWS[law], fn, arguments, reference)

    return named_like(test, fn)
