"""Requests, scheduler, KV block pool, sampling parameters and the step loop; token ids only.

Reading order: `request`, `runner`, `sequence`, `block_pool`, `kv_cache`, `scheduler`, `batch`,
`core`; then `intake`, `growth`, `drain_rate`. docs/concepts/scheduling.md tells the rules.
"""
