// All files as one unit: PyTorch's headers, which take most of the time, are parsed once.
#include "replace_division.cpp"
#include "shift_sigmoid.cpp"
