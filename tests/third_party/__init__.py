"""Additions of others: a backend, a calibration, a training method."""
