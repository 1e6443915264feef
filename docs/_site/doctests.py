"""Show the examples of docstrings as code; in Markdown `>>>` begins a quotation.

Methods of `SweepResult` that are functions of other files are shown as methods.
"""

import re
import textwrap

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?: *\S.*))*", re.MULTILINE)
"""From a prompt to the next empty line."""


def fenced(text: str) -> str:
    """Return the text with its examples in fences of the same indentation."""

    def fence(found: re.Match[str]) -> str:
        lines = textwrap.dedent(found[0])
        return textwrap.indent(f"```pycon\n{lines}\n```", found[1])

    return _EXAMPLE.sub(fence, text)


class Doctests(griffe.Extension):
    """An extension that rewrites every docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        result = pkg["_sweep.results.result.SweepResult"]
        for name, member in list(result.members.items()):
            if member.is_attribute and name in result.parent.imports:
                method = pkg[result.parent.imports[name].partition(".")[2]]
                result.set_member(name, method)
