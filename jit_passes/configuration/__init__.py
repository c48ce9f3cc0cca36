"""Layer-wise options: from files, dicts and Python to the operators of a graph."""
