"""Which replica answers a request: live endpoints, their load, and a lease for each request.

Pure: time and random numbers are arguments. Reading order: `endpoint`, `breaker`, `capacity`,
`service_rate`, `lease`, `endpoint_set`; then how one is chosen: `prompt_prefix`, `prefix_index`,
`policy`, `cost_policy`, `stickiness`, `picker`, `decision_log`; `retry_budget` bounds what comes
after; `fair_queue` is for when all are full.
"""
