"""Models in Hugging Face's layout, read as if they were GGUF files: same keys, same tensor names.

Reading order: `directory` (what is opened), `config` (numbers), `safetensors_file` and
`tensor_map` (weights), `tokenizer_file` (vocabulary).
"""
