"""Requests, scheduler, KV block pool, sampling parameters and the step loop; token ids only."""
