"""headrace: model files and accelerators in, LLM tokens as a service out.

Reading order: `docs/ARCHITECTURE.md`, then `base`, `spec`, `protocol`, `engine`, `gateway`.
"""
