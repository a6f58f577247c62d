"""Which replica runs on which devices of which node, and why; pure, and the same for any order.

Reading order: `cluster` (values), `filters` (nodes that cannot), `fit` (devices of one node and
their score), `search` (many replicas at once), `schedule` (preemption and the queue), `explain`.
"""
