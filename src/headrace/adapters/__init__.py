"""What headrace knows about each kind of engine: data and pure functions.

Reading order: `protocol`, `headrace`, `registry`; `openai_errors` and `prometheus_text` are what
adapters share. A new engine is one file here, a line in `registry`, and its own unit test.
"""
