"""Encoders, the incremental detokenizer and sandboxed chat templates."""
