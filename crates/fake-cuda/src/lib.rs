//! A libcuda.so without a GPU.
