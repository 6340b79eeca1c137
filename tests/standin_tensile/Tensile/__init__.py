"""Stand-in for Tensile; see ../README.md."""

__version__ = "4.44.0"
