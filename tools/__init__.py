"""Tools that write parts of this repository from other parts."""
