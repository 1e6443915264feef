"""Checks of sizes and carries for combinators that loop or map over a stage."""

from collections.abc import Sequence

from .._errors import bullets, structure_error
from .._stage import Scope
from .._tree import differences, leaf_text, leaves_with_names
from .._types import PyTree


def check_carry(function: str, scope: Scope, before: PyTree, after: PyTree) -> None:
    """Raise unless a stage's output has its input's structs, as loops require."""
    lines = differences(before, after)
    if lines:
        wrong = "output of the stage{} differs from its input"
        cure = "Return the structure, shapes and dtypes of the input, or use `chain`."
        if function == "scan":
            wrong = "carry that the cell{} returns differs from the carry that it got"
            cure = (
                "Keep the structure, shapes and dtypes of the carry, for instance "
                "`init=0.0` instead of `0`."
            )
        raise structure_error(
            function,
            f"the {wrong.format(scope.where)}; first what it got, then what it "
            f"returned:{bullets(lines)}",
            cure,
        )


def common_size(
    function: str, axes: Sequence[int | None], x: PyTree, scope: Scope, cure: str
) -> int:
    """Return the size of all arrays along their axes; raise unless it is the same.

    Leaves whose axis is `None` do not count.
    """
    sizes, wrong = {}, []
    for (name, leaf), axis in zip(leaves_with_names(x), axes, strict=True):
        if axis is None:
            continue
        part = f"{f'`.{name}`' if name else 'the input'} is {leaf_text(leaf)}"
        if -leaf.ndim <= axis < leaf.ndim:
            size = leaf.shape[axis]
            sizes[f"{part}: {size} along axis {axis}"] = size
        else:
            wrong.append(f"{part} and has no axis {axis}")
    if not wrong and len(set(sizes.values())) == 1:
        return next(iter(sizes.values()))
    wrong = wrong or list(sizes)
    raise structure_error(
        function,
        f"the input{scope.where} cannot be split:"
        + (bullets(wrong) if wrong else " it contains no arrays."),
        cure,
    )
