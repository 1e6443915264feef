# %% [markdown]
# # A long sweep, killed, resumed and repaired
#
# How does a long sweep survive a reboot, the time limit of a queue, or a point that
# fails? This one fits ridge regressions to measurements of 442 patients in another
# process. We kill the process, resume the sweep and repair its failed points.

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
# ## The script
#
# The function has a fault: it raises for strong penalties, as a solver may. With
# `on_error="mark"` the sweep marks such points and computes the others. (The function
# also sleeps, so that there is time to kill the process.)

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
# ## Read the store while it fills
#
# `ep.SweepResult.load` and `xarray.open_zarr` open a store at any time; in a shell,
# `eqx-pipe status night.zarr` prints the progress.


# %%
def done():
    if not (store / "zarr.json").exists():  # the last file of a new store
        return 0
    return int((ep.SweepResult.load(store).to_xarray()["status"] > 0).sum())


call = f"import eqx_pipe; eqx_pipe.use_cpu_devices(); import job; job.run('{store}')"
job = subprocess.Popen([sys.executable, "-c", call], cwd=folder)
while done() < 150 and job.poll() is None:
    time.sleep(0.3)
job.kill()  # SIGKILL, which a process cannot catch
job.wait()
half = ep.SweepResult.load(store)
half

# %%
ax = half.plot("error")
assert 0 < done() < 576

# %% [markdown]
# ## Resume
#
# Only the points in flight are lost. The same call reads from the store which points
# are missing, and computes them. (Here the notebook makes the call; any process can.)

# %%
sys.path.insert(0, str(folder))
import job as night  # noqa: E402

complete = night.run(store)
assert done() == 576 and 0 < complete.ok.sum() < 576
ax = complete.plot("error")

# %% [markdown]
# ## Repair
#
# Only the failed points have no value. `resume="failed"` computes them again with the
# corrected function; the other values stay, bit for bit.

# %%
corrected = functools.partial(night.ridge, repaired=True)
whole = ep.sweep(corrected, night.space, store=store, resume="failed", on_error="mark")
assert whole.ok.all()
ax = whole.plot("error")

# %%
whole.best("error")
