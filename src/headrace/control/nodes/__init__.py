"""Machines that run replicas: what they report, whether they live, what runs where.

Reading order: `standing` (who is lost, and when nobody is), `quarantine`, `placing` (replicas to
nodes; pure), `book` (what agents said last), `fleet_launcher` (launches here and on nodes),
`node_loop` (the writer), `report_api` (the agents' door), `machine` and `agent` (a node's side).
"""
