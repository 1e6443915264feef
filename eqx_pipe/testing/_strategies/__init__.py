"""Hypothesis strategies for arrays, arguments and pipelines."""

from .strategies import arguments as arguments
from .strategies import arrays as arrays
from .strategies import from_jaxtyping as from_jaxtyping
from .strategies import given_typed as given_typed
from .strategies import keys as keys
from .strategies import pipelines as pipelines
