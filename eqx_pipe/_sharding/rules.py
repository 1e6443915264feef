"""Rules that map logical axes of arrays to mesh axes."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import equinox as eqx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from .._check import check_is
from .._errors import bullets, describe_value, nearest, type_error, value_error
from .._mesh_context import RULES, check_mesh
from .mesh import MeshAxes, names_of

LogicalAxis: TypeAlias = str | tuple[str, ...] | None
"""The logical name of an array's axis, the names of several merged axes, or None."""


class AxisRules(eqx.Module):
    """Rules that map logical axes of arrays to the mesh axes that split them.

    Models and data name the axes of their arrays by meaning, such as `"batch"` or
    `"hidden"`; the rules map these names to the axes of a mesh in one place. They are
    pairs of a logical name and a mesh axis, tried in order for each array. A pair is
    used if the array has that logical axis, no earlier pair has assigned it, and the
    mesh axis is still free in this array; otherwise it is skipped. So earlier pairs
    have priority, whatever the order of the array's axes.

    **Arguments:**

    - `pairs`: a mapping from logical names to mesh axes, or pairs of them, or another
        `AxisRules`. A mesh axis is a name, a tuple of names (split over all of them),
        or `None` (replicated).

    **Raises:** `TypeError` if a pair is not a logical name and a mesh axis.

    **Laws:** in one array no mesh axis is used twice; the spec of a permuted array is
    the permuted spec.

    !!! example

        >>> import eqx_pipe as ep
        >>> rules = ep.sharding.AxisRules(
        ...     [("batch", "data"), ("hidden", "model"), ("input", "model"),
        ...      ("input", None)])
        >>> rules.spec("hidden", "input"), rules.spec("batch", "input")
        (P('model', None), P('data', 'model'))
    """

    pairs: tuple[tuple[str, MeshAxes], ...] = eqx.field(static=True)

    def __init__(self, pairs: "RulesLike"):
        self.pairs = _as_pairs(pairs)

    def spec(self, *logical: LogicalAxis) -> P:
        """Return the `PartitionSpec` of an array whose axes have these logical names.

        **Arguments:**

        - `logical`: one logical name per axis of the array, or `None` for an axis that
            is replicated, or a tuple of names for an axis that merges several.

        **Raises:** `ValueError` if there is no pair for a name, if other axes of the
        array have taken all mesh axes for it, or if a name is given twice.
        """
        spec, problems = self.resolve(logical)
        if problems:
            raise value_error(
                "sharding.AxisRules",
                problems[0] if len(problems) == 1 else bullets(problems),
                "Give one name for each axis of the array, or `None` to replicate it.",
            )
        return spec

    @contextlib.contextmanager
    def on(self, mesh: Mesh) -> Iterator["AxisRules"]:
        """Use these rules for every `constrain` that is called in the `with` block.

        A function under `jit` is traced again under other rules. Blocks nest; the
        innermost one applies.

        **Arguments:**

        - `mesh`: a `jax.sharding.Mesh`.

        **Returns:** a context manager that returns the rules.

        **Raises:** `TypeError` if `mesh` is not a mesh.

        !!! example

            >>> import eqx_pipe as ep, jax, jax.numpy as jnp
            >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
            >>> f = jax.jit(lambda x: ep.sharding.constrain(2 * x, "batch", None))
            >>> with ep.sharding.AxisRules({"batch": "data"}).on(mesh):
            ...     y = f(jnp.ones((16, 3)))
            >>> y.sharding.spec[0]
            'data'
        """
        check_mesh("sharding.AxisRules.on", mesh)
        with RULES((self, mesh)):
            yield self

    def resolve(self, logical: tuple[LogicalAxis, ...]) -> tuple[P, list[str]]:
        """Return the spec and a list of its problems, empty if there are none."""
        problems = [
            f"the axis {describe_value(entry)} is not a logical name."
            for entry in logical
            if not _is_axis(entry)
        ]
        if problems:
            return P(), problems
        names = names_of(logical)
        found, owner = self._assign(names)
        known = list(dict.fromkeys(name for name, _ in self.pairs))
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                problems.append(
                    f"the logical axis `{name}` appears {names.count(name)} times in "
                    f"one array, {logical}. Give one of these axes another name."
                )
            if name not in known:
                problems.append(
                    f"there is no rule for `{name}`. {nearest(name, known)} Add the "
                    f"pair `({name!r}, None)` to replicate such axes."
                )
            elif name not in found:
                wanted = [
                    axis
                    for n, axes in self.pairs
                    if n == name
                    for axis in names_of([axes])
                    if axis in owner
                ]
                taken = "; ".join(f"`{a}` is taken by `{owner[a]}`" for a in wanted)
                problems.append(
                    f"no pair is left for `{name}`: {taken}. Add the pair "
                    f"`({name!r}, None)` after them to replicate this axis."
                )
        if problems:
            return P(), problems
        return P(*(_entry(entry, found) for entry in logical)), []

    def _assign(
        self, names: list[str]
    ) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
        """Return the axes of each logical name, and the owner of each mesh axis."""
        found: dict[str, tuple[str, ...]] = {}
        owner: dict[str, str] = {}
        # In the order of the pairs, not of the array's axes, as in Flax.
        for name, axes in self.pairs:
            wanted = tuple(names_of([axes]))
            taken = any(axis in owner for axis in wanted)
            if name in names and name not in found and not taken:
                found[name] = wanted
                owner.update(dict.fromkeys(wanted, name))
        return found, owner


def current_rules() -> tuple[AxisRules, Mesh] | None:
    """Return the rules and mesh of the enclosing `AxisRules.on`, or None."""
    return RULES.value


RulesLike: TypeAlias = (
    AxisRules
    | Mapping[str, MeshAxes | list[str]]
    | Iterable[Sequence[str | Sequence[str] | None]]
)
"""`AxisRules`, or a mapping or pairs of logical names and mesh axes."""


def as_rules(rules: RulesLike | None) -> AxisRules | None:
    """Return rules as `AxisRules`; mappings and pairs are converted."""
    return rules if rules is None or isinstance(rules, AxisRules) else AxisRules(rules)


def _as_pairs(given: RulesLike) -> tuple[tuple[str, MeshAxes], ...]:
    if isinstance(given, AxisRules):
        return given.pairs
    items = given.items() if isinstance(given, Mapping) else given
    cure = (
        "Give a mapping from logical names to mesh axes, or pairs: "
        '`[("batch", "data"), ("hidden", None)]`.'
    )
    check_is("sharding.AxisRules", "pairs", items, Iterable, cure)
    pairs = []
    for i, pair in enumerate(items):
        good = isinstance(pair, tuple | list) and len(pair) == 2
        axes = pair[1] if good else None
        axes = tuple(axes) if isinstance(axes, list) else axes
        if not good or not isinstance(pair[0], str) or not _is_axis(axes):
            raise type_error(
                "sharding.AxisRules",
                f"`pairs[{i}]` is {describe_value(pair)}.",
                "A pair is a logical name and a mesh axis: its name, a tuple of "
                "names, or None for no splitting.",
            )
        pairs.append((pair[0], axes))
    return tuple(pairs)


def _is_axis(entry: object) -> bool:
    if isinstance(entry, tuple):
        return all(isinstance(name, str) for name in entry)
    return entry is None or isinstance(entry, str)


def _entry(entry: LogicalAxis, found: dict[str, tuple[str, ...]]) -> MeshAxes:
    axes = tuple(axis for name in names_of([entry]) for axis in found[name])
    if len(axes) < 2:
        return axes[0] if axes else None
    return axes
