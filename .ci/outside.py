"""A user's file, run and type-checked outside of the clone, with the wheel installed.

By `pyrightconfig.json` beside it, pyright reads the types of a package only if that has
`py.typed`.
"""

from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import assert_type

import jax.numpy as jnp

import eqx_pipe as ep

assert ep.__version__ == version("eqx_pipe")
assert (files("eqx_pipe") / "py.typed").is_file()
assert "site-packages" in Path(ep.__file__).parts, ep.__file__

space = ep.Space({"x": ep.Linspace(0.0, 3.0, 4)})
result = ep.sweep(lambda point: point["x"] ** 2, space)
assert_type(result, ep.SweepResult)
assert_type(result.batch_size, int)
assert result.values.tolist() == [0.0, 1.0, 4.0, 9.0]
assert ep.chain(jnp.sin, jnp.cos)(jnp.zeros(3)).shape == (3,)
