"""`headrace up` from inside: what it prepares, starts, watches, shows and stops.

Reading order: `data_dir` (the directory and its lock), `demo` (what `--demo` puts in the store),
`child` (one process that is started again), `platform` (all of them, from start to drain),
`first_answer` (when it is ready), `screen` (what a person sees meanwhile and at the end).
"""
