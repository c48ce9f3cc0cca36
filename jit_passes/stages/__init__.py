"""The stages from a float module to a lowered one, and the record that each leaves in it."""
