"""Customer traffic: authenticate, admit, route, stream, settle.

Reading order: `app` (routes and the error edge), `snapshot` and `follower` (what it serves from),
`authenticate`, `admission` (what a request may cost), `generate` (one request's life), `exchange`
(to an engine and back, with retries), `rewriter` (chunks as they pass), `account` (one request's
settlement), `gateway` (the whole, started and stopped).
"""
