# %% [markdown]
# # A property suite that finds a bug
#
# An augmentation from another package goes into a pipeline that is trained:
# `rgb_to_hsl` of `dm-pix` (version 0.4.5), to change colours by hue and lightness. Its
# values are right, as its own tests show. Is it safe in training? We check laws, not
# examples.

# %%
import dm_pix
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import eqx_pipe as ep
import eqx_pipe.testing as ept

# %% [markdown]
# ## The suite
#
# An image of one pixel will do. Its colours are anything between 0 and 1, and
# hypothesis likes ends and simple numbers. The stage is the pipeline that we mean to
# use: to HSL, and back.

# %%
recolour = ep.chain(to_hsl=dm_pix.rgb_to_hsl, back=dm_pix.hsl_to_rgb)
pixel = jax.ShapeDtypeStruct((1, 1, 3), "float32")
colours = st.floats(0, 1, width=32)


few = hypothesis.settings(
    max_examples=5, deadline=None, derandomize=True, database=None
)


@few
@hypothesis.given(ept.arrays(pixel, elements=colours))
def test_recolour(image):
    ept.check_function(recolour, image, only=("jit", "finite"))


try:
    test_recolour()
except AssertionError as error:
    print(error)
else:
    raise AssertionError("has it been mended? Then this page needs another example")

# %% [markdown]
# The law, the stage, and the simplest input that hypothesis found: a black pixel, where
# the value is finite and the derivative is not. By hand:


# %%
def lightness(image):
    return dm_pix.rgb_to_hsl(image)[..., 2].sum()


print(jax.grad(lightness)(jnp.zeros((1, 1, 3))))

# %% [markdown]
# Lightness is `(max + min) / 2`, whose derivative is harmless. The NaN comes from the
# hue, which divides by the difference between channels: zero here, in the branch of a
# `where` that is not taken, and in reverse mode `0 * inf` is NaN for all that it was
# made of.
#
# ## What it would have done
#
# A scanned digit is gray, and a gray pixel has equal channels. So it is not the rare
# pixel, but every one. Here is where the derivative of a loss, by the pixels of four
# digits, is NaN:

# %%
digits = load_digits().images[:4] / 16
images = jnp.asarray(np.repeat(digits[..., None], 3, -1), "float32")
slopes = jax.jit(jax.vmap(jax.grad(lambda image: jnp.sum(recolour(image) ** 2))))(
    images
)
figure, panels = plt.subplots(2, 4, figsize=(6, 3))
for (above, below), image, slope in zip(panels.T, digits, slopes, strict=True):
    above.imshow(image, cmap="gray_r")
    below.imshow(jnp.isnan(slope).any(-1), cmap="Reds", vmin=0, vmax=1)
    above.axis("off")
    below.set(xticks=[], yticks=[])
print(f"NaN at {jnp.isnan(slopes).mean():.0%} of all numbers")

# %% [markdown]
# ## A cure
#
# Until it is mended there: saturation and lightness, which is what we wanted to change,
# with a guarded denominator; and the same suite.


# %%
def saturation_and_lightness(image):
    high, low = image.max(-1), image.min(-1)
    span, light = high - low, (high + low) / 2
    room = 1 - jnp.abs(2 * light - 1)
    safe = jnp.where(room > 1e-6, room, 1.0)
    return jnp.stack([jnp.where(room > 1e-6, span / safe, 0.0), light], -1)


@few
@hypothesis.given(ept.arrays(pixel, elements=colours))
def test_mended(image):
    ept.check_function(saturation_and_lightness, image, only=("jit", "finite"))


test_mended()
found = dm_pix.rgb_to_hsl(images)[..., 1:]
assert np.allclose(saturation_and_lightness(images), found, atol=1e-4)
