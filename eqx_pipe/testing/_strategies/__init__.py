"""Hypothesis strategies for arrays, arguments, pipelines and spaces."""

from .structures import pipelines as pipelines
from .structures import spaces as spaces
from .values import arguments as arguments
from .values import arrays as arrays
from .values import from_jaxtyping as from_jaxtyping
from .values import given_typed as given_typed
from .values import keys as keys
