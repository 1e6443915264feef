"""Which parameters of the public API tell nothing of what they take.

A parameter tells nothing if it has no annotation, or one that admits everything: `Any`,
a union with it, or another name for either. Public are the functions and classes in
`dir(eqx_pipe)`, `.testing` and `.search`, and the classes that the functions return:
of a class its constructor and its methods, also those inherited from classes of ours.

    python tests/public_types.py [eqx_pipe._compose ...]

prints those that are defined in the modules named, or all.
"""

import dataclasses
import functools as ft
import inspect
import sys
import types
import typing
from collections.abc import Iterator

import eqx_pipe as ep
import eqx_pipe.search as eps
import eqx_pipe.testing as ept


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a public function or method."""

    module: str
    function: str
    name: str
    annotation: typing.Any

    def __str__(self) -> str:
        return f"{self.function}({self.name})"

    @property
    def tells_nothing(self) -> bool:
        return admits_all(self.annotation)


def admits_all(annotation: typing.Any) -> bool:
    """Whether an annotation is missing, `Any`, or a union or a name of such."""
    if annotation is inspect.Parameter.empty or annotation is typing.Any:
        return True
    if hasattr(annotation, "__value__"):  # a `type` statement or a `TypeAliasType`
        return admits_all(annotation.__value__)
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(map(admits_all, typing.get_args(annotation)))
    if origin is typing.Annotated:
        return admits_all(annotation.__origin__)
    return False


def ours(thing: typing.Any) -> bool:
    return getattr(thing, "__module__", "").partition(".")[0] == "eqx_pipe"


def written_by_hand(method: typing.Any) -> bool:
    """Whether it is a function in a file of ours, and not made by `dataclasses`."""
    function = inspect.unwrap(method)
    code = getattr(function, "__code__", None)
    return code is not None and ours(function) and not code.co_filename.startswith("<")


def functions(item: typing.Any, made: bool = True) -> Iterator[typing.Callable]:
    """A function itself; of a class the methods, and if `made` the constructor."""
    if not isinstance(item, type):
        yield item
        return
    classes = [c for c in inspect.getmro(item) if ours(c)]
    protocol = getattr(item, "_is_protocol", False)  # which has an empty constructor
    if made and not protocol and any("__init__" in vars(c) for c in classes):
        yield item.__init__
    seen = {"__init__"}
    for name, value in (pair for c in classes for pair in vars(c).items()):
        method = getattr(value, "__func__", value)  # of a classmethod, staticmethod
        public = not name.startswith("_") or name.endswith("__")
        if public and name not in seen and written_by_hand(method):
            seen.add(name)
            yield method


def returned(function: typing.Callable) -> Iterator[type]:
    """The classes of ours that a function is annotated to return."""
    out = inspect.signature(function).return_annotation
    for one in typing.get_args(out) or (out,):
        if isinstance(one, type) and ours(one):
            yield one


@ft.cache
def public_items() -> dict[typing.Any, bool]:
    """The functions and classes; of a class whether its constructor is public."""
    named = [
        getattr(m, name) for m in (ep, ept, eps) for name in dir(m) if name[0] != "_"
    ]
    named = [item for item in named if ours(item)]
    items = {
        i if callable(i) and hasattr(i, "__name__") else type(i): True for i in named
    }
    for item in list(items):
        if not isinstance(item, type):
            for made in returned(item):
                items.setdefault(made, False)
    return items


@ft.cache
def parameters() -> tuple[Parameter, ...]:
    """The parameters, each once, the first of methods left out."""
    found: dict[str, Parameter] = {}
    for item, made in public_items().items():
        for function in functions(item, made):
            parts = list(inspect.signature(function).parameters.values())
            if isinstance(item, type):
                parts = parts[1:]
            for part in parts:
                name = function.__qualname__.rpartition("<locals>.")[2]
                one = Parameter(function.__module__, name, part.name, part.annotation)
                found.setdefault(f"{one.module}.{one}", one)
    return tuple(found.values())


def main(prefixes: list[str]) -> None:
    chosen = [p for p in parameters() if p.module.startswith(tuple(prefixes or [""]))]
    bad = [p for p in chosen if p.tells_nothing]
    print(*sorted(f"{p.module}.{p}" for p in bad), sep="\n")
    print(f"{len(bad)} of {len(chosen)} parameters tell nothing.")


if __name__ == "__main__":
    main(sys.argv[1:])
