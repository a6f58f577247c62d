"""The slow, obvious NumPy version of every kernel: the truth that the fast ones are tested against.

Reading order: `dequantize`, `norm`, `rope`, `activation`, `attention`, `transformer`, `sampler`.
Nothing here is tuned, and nothing on a serving path imports it.
"""
