"""Quantizers: from a graph to annotations."""
