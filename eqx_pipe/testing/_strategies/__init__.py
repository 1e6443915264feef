"""Hypothesis strategies for arrays and arguments."""

from .strategies import arguments as arguments
from .strategies import arrays as arrays
from .strategies import from_jaxtyping as from_jaxtyping
from .strategies import given_typed as given_typed
