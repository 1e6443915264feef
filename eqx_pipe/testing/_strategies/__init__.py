"""Hypothesis strategies for arrays, arguments, pipelines and spaces."""

from .arguments import arguments as arguments
from .arguments import from_jaxtyping as from_jaxtyping
from .arguments import given_typed as given_typed
from .arrays import arrays as arrays
from .arrays import keys as keys
from .pipelines import pipelines as pipelines
from .spaces import spaces as spaces
