"""Which replica answers a request: live endpoints, their load, and a lease for each request.

Pure: time and random numbers are arguments. Reading order: `endpoint`, `breaker`, `lease`,
`endpoint_set`, `picker`, `retry_budget`.
"""
