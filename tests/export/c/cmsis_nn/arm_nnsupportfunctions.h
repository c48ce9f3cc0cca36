/* All that programs call is in arm_nnfunctions.h. */
