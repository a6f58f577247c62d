"""The Python face of the compiled kernels, and one plain NumPy reference for each."""
