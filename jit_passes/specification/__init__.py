"""How values are quantized: specifications, annotations, and who shares parameters with whom."""
