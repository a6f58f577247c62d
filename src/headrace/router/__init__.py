"""Which replica answers a request: live endpoints, their load, and a lease for each request.

Pure: time and random numbers are arguments. Reading order: `endpoint`, `breaker`, `capacity`,
`lease`, `endpoint_set`, `picker`, `retry_budget`; `fair_queue` is for when all are full.
"""
