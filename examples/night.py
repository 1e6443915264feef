# %% [markdown]
# # A night's sweep, killed, read and repaired
#
# A long sweep will be interrupted: by a reboot, by the limit of a queue, by a point
# that fails. Here all of that happens in some seconds. The sweep fits ridge regressions
# to measurements of 442 patients, in another process, which we kill.

# %%
import functools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import eqx_pipe as ep

ep.use_cpu_devices()  # in a notebook, in the first cell
folder = Path(tempfile.mkdtemp())
store = folder / "night.zarr"

# %% [markdown]
# ## The script that runs at night
#
# The function has a fault: for strong penalties it raises, as many a solver does. With
# `on_error="mark"` such points are marked, and the others survive. (It also sleeps,
# so that there is something to kill.)

# %%
script = """
import time
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
from sklearn.datasets import load_diabetes
import eqx_pipe as ep

patients, progression = load_diabetes(return_X_y=True, scaled=True)
x = jnp.asarray(patients * 20, "float32")
y = jnp.asarray((progression - progression.mean()) / progression.std(), "float32")

def slowly(value):
    time.sleep(0.03)
    return value

def ridge(point, repaired=False):
    power = jnp.abs(x) ** point["power"] * jnp.sign(x)
    train, test = power[:300], power[300:]
    gram = train.T @ train / 300 + point["penalty"] * jnp.eye(10)
    w = jnp.linalg.solve(gram, train.T @ y[:300] / 300)
    error = jnp.mean((test @ w - y[300:]) ** 2)
    if not repaired:
        error = eqx.error_if(error, point["penalty"] > 5, "the penalty is too strong")
        same = jax.ShapeDtypeStruct(error.shape, error.dtype)
        error = jax.pure_callback(slowly, same, error, vmap_method="sequential")
    return {"error": error, "norm": jnp.linalg.norm(w)}

space = {
    "penalty": ep.Geomspace(1e-3, 10, 24, label="penalty"),
    "power": ep.Linspace(0.2, 2, 24, label="power of the measurements"),
}

def run(store):
    return ep.sweep(ridge, space, store=store, batch_size=4, on_error="mark",
                    progress=False)
"""
file = folder / "job.py"
_ = file.write_text(script)

# %% [markdown]
# ## It runs, and we look at it
#
# A store can be opened from the first moment, by `ep.SweepResult.load` or by
# `xarray.open_zarr`; in a shell `eqx-pipe status night.zarr` says how far it is.


# %%
def done():
    try:
        return int((ep.SweepResult.load(store).to_xarray()["status"] > 0).sum())
    except FileNotFoundError:
        return 0


call = f"import eqx_pipe; eqx_pipe.use_cpu_devices(); import job; job.run('{store}')"
job = subprocess.Popen([sys.executable, "-c", call], cwd=folder)
while done() < 150 and job.poll() is None:
    time.sleep(0.3)
job.kill()  # not to be caught: as by a queue, or the lack of memory
job.wait()
half = ep.SweepResult.load(store)
half

# %%
ax = half.plot("error")
assert 0 < done() < 576

# %% [markdown]
# ## Killed; the same call goes on
#
# The points in flight are lost, and no others. Nothing is said about what to compute:
# the store knows. (Here the notebook makes the call, as any process may.)

# %%
sys.path.insert(0, str(folder))
import job as night  # noqa: E402

complete = night.run(store)
assert done() == 576 and 0 < complete.ok.sum() < 576
ax = complete.plot("error")

# %% [markdown]
# ## Repaired
#
# All is there, but for the points that failed. They are computed again with the mended
# function; the others keep their values, to the bit.

# %%
mended = functools.partial(night.ridge, repaired=True)
whole = ep.sweep(mended, night.space, store=store, resume="failed", on_error="mark")
assert whole.ok.all()
ax = whole.plot("error")

# %%
whole.best("error")
