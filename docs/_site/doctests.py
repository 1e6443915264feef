"""Show the examples of docstrings as code; in Markdown `>>>` begins a quotation.

The first example of a docstring follows its first paragraph. Annotations show what a
type alias stands for, and `Composite` for the classes of the combinators.

Classes are shown with the constructors that Equinox or a base class gives them, and
strategies without the argument `draw`, which hypothesis passes.
"""

import dataclasses
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import griffe

sys.path.append(str(Path(__file__).parent))

import reference  # noqa: E402

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?: *\S.*))*", re.MULTILINE)
"""From a prompt to the next empty line."""


_FIRST = re.compile(r"^!!! example\n\n((?: {4}.*\n|\n)+)", re.MULTILINE)
"""An example in a box of its own."""


def example_first(text: str) -> str:
    """Return the text with its first example after its first paragraph."""
    text = inspect.cleandoc(text) + "\n"
    found = _FIRST.search(text)
    if found is None:
        return text
    summary, _, rest = (text[: found.start()] + text[found.end() :]).partition("\n\n")
    return f"{summary}\n\n{textwrap.dedent(found[1]).strip()}\n\n{rest}"


def fenced(text: str) -> str:
    """Return the text with its examples in fences of the same indentation."""

    def fence(found: re.Match[str]) -> str:
        lines = textwrap.dedent(found[0])
        return textwrap.indent(f"```pycon\n{lines}\n```", found[1])

    return _EXAMPLE.sub(fence, text)


SHOWN = {
    "AbstractReducer": "Reducer",
    "HostSource": "Sequence",
    "Vmapped": "Callable",
}
"""Internal classes, and what users know in their place."""


class Doctests(griffe.Extension):
    """An extension that rewrites every docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(example_first(obj.docstring.value))

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        for value in constructed():
            add_constructor(pkg, value)
        for value in filter(inspect.isfunction, public()):
            remove_draw(find(pkg, value), inspect.signature(value))
        for value in public():
            shown = find(pkg, value)
            functions = [shown] if inspect.isfunction(value) else members_of(shown)
            for function in functions:
                function.returns = spelled_out(function.returns, pkg)
                for parameter in function.parameters:
                    parameter.annotation = spelled_out(parameter.annotation, pkg)


def public() -> list[object]:
    """Return the objects of the reference."""
    return [v for page in reference.TITLES for _, v in reference.entries(page)]


def constructed() -> list[type]:
    """Return the classes that users construct."""
    return [
        value
        for value in public()
        if inspect.isclass(value)
        and value.__name__ not in reference.RETURNED
        and not issubclass(value, Exception)
        and not getattr(value, "_is_protocol", False)
    ]


def add_constructor(pkg: griffe.Module, cls: type) -> None:
    """Give a class a constructor, annotated as that of its base or by its fields."""
    shown = find(pkg, cls)
    base = find(pkg, inspect.unwrap(cls.__init__))
    types = {}
    for field in dataclasses.fields(cls):
        converter = find(pkg, field.metadata.get("converter"))
        if converter is not None and converter.is_function:
            types[field.name] = list(converter.parameters)[0].annotation
        elif field.name in shown.all_members:
            types[field.name] = shown.all_members[field.name].annotation
    if base is not None:
        types |= {p.name: p.annotation for p in base.parameters}
    parameters = [
        griffe.Parameter(
            p.name,
            annotation=types.get(p.name),
            kind=griffe.ParameterKind[p.kind.name.lower()],
            default=None if p.default is p.empty else repr(p.default),
        )
        for p in inspect.signature(cls).parameters.values()
    ]
    constructor = griffe.Function("__init__", parameters=griffe.Parameters(*parameters))
    if base is not None and base.parent is shown:
        constructor.docstring = base.docstring
    shown.set_member("__init__", constructor)


def members_of(cls: griffe.Object | None) -> list[griffe.Function]:
    """Return the methods that a class shows."""
    members = {} if cls is None else cls.members
    return [m for m in members.values() if isinstance(m, griffe.Function)]


def spelled_out(type_: Any, pkg: griffe.Module) -> Any:
    """Return an annotation with the values of its type aliases."""
    if isinstance(type_, griffe.ExprName):
        try:
            known = pkg[type_.canonical_path.partition(".")[2]]
            known = known.final_target if known.is_alias else known
        except (KeyError, ValueError, griffe.AliasResolutionError):
            return type_  # of another package
        alias = known.is_attribute and (
            str(known.annotation).endswith("TypeAlias")
            or str(known.value).startswith("Literal[")
        )
        if alias and str(known.value) != "PRNGKeyArray":
            return spelled_out(known.value, pkg)
        if known.is_class and any(b.name == "Composite" for b in known.mro()):
            return "Composite"
        return SHOWN.get(type_.name, type_)
    if isinstance(type_, griffe.Expr):
        fields = {f.name: getattr(type_, f.name) for f in dataclasses.fields(type_)}
        changed = {
            name: [spelled_out(v, pkg) for v in value]
            if isinstance(value, list)
            else spelled_out(value, pkg)
            for name, value in fields.items()
            if isinstance(value, list | griffe.Expr)
        }
        return dataclasses.replace(type_, **changed)
    return type_


def remove_draw(function: griffe.Function, signature: inspect.Signature) -> None:
    """Show a strategy as users call it: hypothesis passes the argument `draw`."""
    if "draw" in function.parameters and "draw" not in signature.parameters:
        del function.parameters["draw"]
        function.returns = f"SearchStrategy[{function.returns}]"


def find(pkg: griffe.Module, value: object) -> griffe.Object | None:
    """Return the object of a function or class, or `None` if no file defines it."""
    name = getattr(value, "__qualname__", "")
    name = value.__name__ if "<locals>" in name else name
    path = f"{getattr(value, '__module__', '')}.{name}".partition(".")[2]
    try:
        return pkg[path]
    except (KeyError, ValueError):
        return None
