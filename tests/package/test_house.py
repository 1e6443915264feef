"""The package as a whole: annotation checks in tests, imports, exports."""

import ast
import copy
import functools as ft
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept

PACKAGE = Path(ep.__file__).parent


@ft.cache
def loaded_by(statement):
    """Return the modules that a fresh process holds after `statement`."""
    code = f"{statement}; import sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


# CI sets the variable on the newest Python. Without these tests, nobody would notice if
# the variable no longer switched the checks of annotations on.
checked = pytest.mark.skipif(
    not os.environ.get("EQX_PIPE_CHECK_ANNOTATIONS"),
    reason="annotations are checked if EQX_PIPE_CHECK_ANNOTATIONS is set",
)


@checked
@pytest.mark.parametrize("index", [jnp.array([1, 2]), "first"])
def test_wrong_shapes_and_types_are_found_in_tests(index):
    """Annotations are checked where the package itself does not check."""
    axis = ep.Seeds(4)
    assert axis.value(jnp.array(1), None).shape == ()
    with pytest.raises(Exception, match="value") as error:
        axis.value(index, None)
    assert type(error.value).__module__.startswith("jaxtyping")


def test_importing_loads_no_further_library():
    """Import what users do not need at first where it is used."""
    added = loaded_by("import eqx_pipe") - loaded_by("import equinox")
    foreign = {name.partition(".")[0] for name in added} - sys.stdlib_module_names
    assert foreign <= {"eqx_pipe", "jax", "equinox"}
    assert "eqx_pipe._cli" not in added
    assert not {name for name in added if name.startswith("eqx_pipe.testing")}


def test_public_names_have_docstrings():
    assert len(set(ep.__all__)) == len(ep.__all__)
    assert set(ep.__all__) < set(dir(ep))
    assert not [name for name in ep.__all__ if not getattr(ep, name).__doc__]


def test_type_checkers_see_the_names_that_are_there():
    """They read `from ._x import a as a`; the names are looked up in a table."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [a.asname for node in nodes for a in node.names if a.asname == a.name]
    assert sorted(names) == sorted(ep.__all__)


MODULES = (ep.data, ep.reduce, ep.search, ep.sharding)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_modules_import_from_packages_alone(module):
    """They hold imports of what they export and nothing else."""
    tree = ast.parse(Path(module.__file__).read_text())
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = [a.asname for node in nodes for a in node.names if a.asname == a.name]
    there = {n: v for n, v in vars(module).items() if not n.startswith("_")}
    assert sorted(names) == sorted(
        n for n, v in there.items() if not inspect.ismodule(v)
    )
    assert len(tree.body) == len(nodes) + 1  # the docstring


def public():
    """Return the public names of all public modules, with their objects."""
    modules = (ep, *MODULES, ept)
    found = [(module, n) for module in modules for n in dir(module) if n[0] != "_"]
    values = [(n, getattr(module, n)) for module, n in found]
    return [(name, value) for name, value in values if not inspect.ismodule(value)]


NOT_CALLED = {"Axis", "Cursor", "Stage", "SweepResult"}
"""Classes that users do not call: what their methods raise stands there."""


SHOWN_BY = {"Method", "Population", "SearchResult", "TrainResult", "Training"}
"""Classes whose examples are those of `explore` and `train`."""


def checks_arguments(name, value):
    """Return whether a function, or a class's constructor, raises or checks."""
    if inspect.isclass(value) and issubclass(value, Exception) or name in NOT_CALLED:
        return False
    tree = ast.parse(Path(sys.modules[value.__module__].__file__).read_text())
    kinds = ast.FunctionDef | ast.ClassDef
    node = next(n for n in tree.body if isinstance(n, kinds) and n.name == name)
    if isinstance(node, ast.ClassDef):
        made = ("__init__", "__check_init__", "__call__")
        parts = [n for n in node.body if getattr(n, "name", "") in made]
    else:
        parts = node.body
    nodes = [node for part in parts for node in ast.walk(part)]
    called = [ast.unparse(n.func) for n in nodes if isinstance(n, ast.Call)]
    checks = any(re.match(r"_?check", name) for name in called)
    return checks or any(isinstance(n, ast.Raise) for n in nodes)


def test_public_names_say_how_they_are_used():
    """An example each; and what they take, give (with shapes) and raise, if they do."""
    lacking = []
    for name, value in public():
        parts = [] if name in SHOWN_BY else [">>> "]
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            gives = signature.return_annotation
            parts += ["**Arguments:**"] if signature.parameters else []
            parts += ["**Returns:**"] if gives is not None else []
        if inspect.isfunction(value) or inspect.isclass(value):
            parts += ["**Raises:**"] if checks_arguments(name, value) else []
        text = inspect.getdoc(value) or ""
        lacking += [(name, part) for part in parts if part not in text]
    assert not lacking


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute `sweeep`"):
        ep.sweeep  # noqa: B018


def test_annotations_are_not_strings():
    """Strings would blind the runtime checker."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module != "__future__", path


def test_the_reference_is_complete():
    """Run `python docs/_site/reference.py` if it is not."""
    folder = PACKAGE.parent / "docs"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "_site")
        pages = importlib.import_module("reference").pages()
    for name, text in pages.items():
        assert (folder / "api" / name).read_text() == text, name


OTHER_NAMES = {
    "Logspace": r"`Geomspace\(start, stop, num\)`",
    "Choice": r"`Values\(\[8, 64\]\)`.*`Static",
    "Grid": "A dict of axes is a grid",
    "Linspce": "Did you mean `Linspace`",
    "Loader": "Did you mean `eqx_pipe.data.Loader`",
    "check_function": "Did you mean `eqx_pipe.testing.check_function`",
}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_names_of_other_packages_lead_to_ours(name):
    with pytest.raises(
        AttributeError, match=f"no attribute `{name}`.*{OTHER_NAMES[name]}"
    ):
        getattr(ep, name)
    assert not hasattr(ep, "_" + name)


def test_a_search_leads_to_the_result_of_all_its_points():
    points = ep.search.Design([[0.5]])
    found = ep.search.explore(
        lambda p: p["x"], {"x": ep.Uniform(0, 1)}, points, rounds=1, num=1
    )
    for name in ("plot", "values", "errors"):
        with pytest.raises(AttributeError, match=f"`.result.{name}`"):
            getattr(found, name)
    with pytest.raises(AttributeError, match="`lot`.$"):
        found.lot  # noqa: B018
    assert copy.copy(found).best() == found.best()
