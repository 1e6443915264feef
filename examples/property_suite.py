# %% [markdown]
# # A property suite that finds a bug
#
# Is an image operation of another package safe in training? `rgb_to_hsl` of `dm-pix`
# (version 0.4.5) returns the right values, as its own tests show. Property checks find
# inputs at which its gradient is NaN.

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
# An image of one pixel is enough. Hypothesis draws colours between 0 and 1, often the
# ends of this range. The pipeline under test converts to HSL and back.

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
    raise AssertionError("dm-pix has been fixed, so this page needs another example")

# %% [markdown]
# The message names the law, the stage, and the simplest input that hypothesis found: a
# black pixel, where the value is finite and the derivative is not. By hand:


# %%
def lightness(image):
    return dm_pix.rgb_to_hsl(image)[..., 2].sum()


print(jax.grad(lightness)(jnp.zeros((1, 1, 3))))

# %% [markdown]
# Lightness is `(max + min) / 2`, whose derivative is finite. The NaN comes from the
# hue, which divides by the difference between channels. It is zero here, in the branch
# of a `where` that is not taken, and reverse mode multiplies `0 * inf`, which is NaN.
#
# ## The damage
#
# A scanned digit is gray, and every gray pixel has equal channels. Here are the pixels
# of four digits at which the derivative of a loss is NaN:

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
print(f"NaN in {jnp.isnan(slopes).mean():.0%} of all numbers")

# %% [markdown]
# ## A fix
#
# Until the package has a fix, compute saturation and lightness with a guarded
# denominator, and run the same suite on it.


# %%
def saturation_and_lightness(image):
    high, low = image.max(-1), image.min(-1)
    span, light = high - low, (high + low) / 2
    room = 1 - jnp.abs(2 * light - 1)
    safe = jnp.where(room > 1e-6, room, 1.0)
    return jnp.stack([jnp.where(room > 1e-6, span / safe, 0.0), light], -1)


@few
@hypothesis.given(ept.arrays(pixel, elements=colours))
def test_fixed(image):
    ept.check_function(saturation_and_lightness, image, only=("jit", "finite"))


test_fixed()
found = dm_pix.rgb_to_hsl(images)[..., 1:]
assert np.allclose(saturation_and_lightness(images), found, atol=1e-4)
