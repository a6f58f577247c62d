"""LoRA adapters: small matrices beside a model's own, from PEFT's directories and GGUF files.

Reading order: `adapter` (what an adapter is, how one is opened), `peft`, `gguf` (the two layouts).
"""
