"""Desired and observed state of the platform as immutable values.

Every kind is a `Resource`: an id, a name unique within its parent, and a body. `storage` keeps
them, `control` reconciles them, `gateway` serves from a snapshot of them. Reading order:
`resource`, `tenancy`, `api_key_format`, `models`, `deployments`, `prices`, `settlements`.
"""
