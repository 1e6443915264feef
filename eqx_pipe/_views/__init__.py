"""What people look at: descriptions and drawings of pipelines."""

from .describe import describe as describe
from .draw import draw as draw
from .summary import summary as summary
