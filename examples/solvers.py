# %% [markdown]
# # An ensemble of differential equations
#
# From which stiffness on does an implicit ODE solver take fewer steps than an explicit
# one? A sweep solves Van der Pol's oscillator at 24 stiffnesses by both. An explicit
# solver takes ever smaller steps as the equation becomes stiff; an implicit one does
# not, but solves a nonlinear system in every step. The solver is a `Static` axis: each
# has its own compiled program, which computes all stiffnesses.

# %%
import diffrax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import eqx_pipe as ep

ep.use_cpu_devices()  # in a notebook, in the first cell


# %%
def oscillate(point):
    def field(t, y, mu):
        x, v = y
        return v, mu * (1 - x**2) * v - x

    solver = {"explicit": diffrax.Tsit5(), "implicit": diffrax.Kvaerno5()}
    times = jnp.linspace(0, 20, 100)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        solver[point["solver"]],
        t0=0,
        t1=20,
        dt0=None,
        y0=(jnp.array(2.0), jnp.array(0.0)),
        args=point["mu"],
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        max_steps=4000,
        throw=False,
    )
    return {
        "x": solution.ys[0],
        "steps": solution.stats["num_steps"],
        "solved": solution.result == diffrax.RESULTS.successful,
    }


space = {
    "solver": ep.Static(["explicit", "implicit"]),
    "mu": ep.Geomspace(0.1, 100, 24, label="stiffness"),
}
result = ep.sweep(oscillate, space)
result

# %% [markdown]
# The output `solved` is false where a solver stops early. With `throw=True` it would
# raise instead, and `on_error="mark"` would mark the point.

# %%
data = result.to_xarray()
assert bool(data["solved"].all())
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5))
data["steps"].plot.line(ax=left, x="mu", xscale="log", yscale="log")
for mu in (0.1, 3, 30):
    curve = data["x"].sel(solver="implicit").sel(mu=mu, method="nearest")
    right.plot(jnp.linspace(0, 20, 100), curve, label=f"{curve.mu.item():.2g}")
right.set(xlabel="time", ylabel="x")
legend = right.legend(title="stiffness")

# %% [markdown]
# The stiffest oscillators hardly move in this time. The implicit solver crosses it in a
# few steps, with which the explicit one would be unstable. Both agree where they
# resolve the swings, and the lines on the left cross:

# %%
apart = abs(data["x"].sel(solver="explicit") - data["x"].sel(solver="implicit"))
assert float(apart.sel(mu=slice(0.1, 3)).max()) < 0.1
steps = data["steps"]
fewer = steps.sel(solver="implicit") < steps.sel(solver="explicit")
print(f"implicit takes fewer steps from {float(data['mu'][fewer][0]):.2g} on")

# %% [markdown]
# A batch runs until its slowest point has finished, so a stiff point delays the others.
# With `ep.sweep(..., order_by=lambda point: point["mu"])` points of similar cost share
# a batch, and results come back in place. On a CPU, `ep.kernel` goes further: it runs
# the whole solver for a few points at a time, as native code, so nothing waits for a
# batch, and a step needs no pass over memory. That pays off for many points. The
# implicit solver factorises matrices, which kernels do not support.


# %%
@ep.kernel
def final_state(point):
    def field(t, y, mu):
        x, v = y
        return v, mu * (1 - x**2) * v - x

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=0,
        t1=20,
        dt0=0.01,
        y0=(jnp.array(2.0), jnp.array(0.0)),
        args=point["mu"],
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        max_steps=None,
    )
    return solution.ys[0][-1]


many = ep.sweep(final_state, {"mu": ep.Geomspace(0.1, 3, 20_000)})
few = result.to_xarray()["x"].sel(solver="explicit")[:, -1]
ends = many.to_xarray()["value"].interp(mu=few["mu"][few["mu"] < 3])
print(f"largest difference: {float(abs(ends - few).max()):.1g}")
