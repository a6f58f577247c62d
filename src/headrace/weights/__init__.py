"""Model files: readers, architecture specs, model sources and the local cache.

Reading order: `tensor`, `gguf` (with `gguf_cursor`, `gguf_metadata`), `architecture`; then
`catalogue`, `reference`, `sources`, which turn what a user names into a verified local file.
"""
