"""What holds for the package as a whole: checks in tests, imports, exports."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

import eqx_pipe as ep

PACKAGE = Path(ep.__file__).parent

# Imported where they are used, so that nobody waits for what they do not need.
OPTIONAL = {
    "cloudpickle",
    "dask",
    "distributed",
    "grain",
    "h5netcdf",
    "hypothesis",
    "matplotlib",
    "netCDF4",
    "numpyro",
    "optax",
    "pandas",
    "pytest",
    "sklearn",
    "tqdm",
    "xarray",
    "zarr",
}


def loaded_by(statement):
    """The modules that a fresh process holds after `statement`."""
    code = f"{statement}; import sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_wrong_shapes_are_found_in_tests():
    """The canary: with the jaxtyping hook off, nobody would notice."""
    from eqx_pipe.demo.model import scale

    assert scale(jnp.zeros((8, 8))).shape == (8, 8)
    with pytest.raises(Exception, match="scale") as error:
        scale(jnp.zeros((3, 8)))
    assert type(error.value).__module__.startswith("jaxtyping")


def test_wrong_types_are_found_in_tests():
    """The same for beartype, on a function that has no check of its own."""
    from eqx_pipe._errors import nearest

    with pytest.raises(Exception, match="nearest") as error:
        nearest("a", 3)  # type: ignore
    assert type(error.value).__module__.startswith("jaxtyping")


def test_importing_loads_no_optional_library():
    added = loaded_by("import eqx_pipe") - loaded_by("import equinox")
    assert not {name.partition(".")[0] for name in added} & OPTIONAL
    assert not {name for name in added if name.startswith("eqx_pipe.demo")}
    assert not {name for name in added if name.startswith("eqx_pipe.testing")}


def test_importing_loads_no_further_library_at_all():
    """Only the core dependencies, the standard library, and what is ours."""
    added = loaded_by("import eqx_pipe") - loaded_by("import equinox")
    foreign = {name.partition(".")[0] for name in added} - sys.stdlib_module_names
    assert foreign <= {"eqx_pipe", "jax", "equinox"}


def test_every_public_name_is_exported_plainly():
    """`__init__.py` holds `from ._x import a as a` and the version, nothing else."""
    first, *body = ast.parse((PACKAGE / "__init__.py").read_text()).body
    assert isinstance(first, ast.Expr)  # the docstring
    for node in body:
        if isinstance(node, ast.Assign):
            assert ast.unparse(node.targets[0]) == "__version__"
            continue
        assert isinstance(node, ast.ImportFrom)
        for name in node.names:
            assert name.asname in (name.name, "_version"), ast.unparse(node)


def test_public_names_have_docstrings():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = {n.asname for node in imports for n in node.names} - {"_version"}
    assert not [name for name in names if not getattr(ep, name).__doc__]


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_annotations_are_not_strings(path):
    """Strings would blind the runtime checker."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.module != "__future__"
