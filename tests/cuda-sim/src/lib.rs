//! A simulated CUDA driver: stand-ins for libcuda, libnvrtc and libcublasLt that run kernels on the CPU.
