//! The CUDA backend: rendered kernels, cuBLASLt, and a whole plan as one graph launch.

pub mod render;
