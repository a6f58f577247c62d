"""A load generator for OpenAI-compatible servers, cheap enough to share a machine with one.

Reading order: `workload` (what is asked), `stream` (what one answer's bytes tell), `client` (one
request), `runner` (many, by concurrency or rate), `summary` (percentiles and rates).
"""
