"""Profiles: ranges and histograms of all values of a model, in a file, instead of data."""

from .fill import fill
from .record import Profile
from .run import profile
from .value import ValueProfile

__all__ = ["Profile", "ValueProfile", "fill", "profile"]
