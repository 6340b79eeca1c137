"""bc250studio: from a dataset to a served model that is proven to be the one you trained."""

__version__ = "0.1.0"
