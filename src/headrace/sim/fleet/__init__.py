"""A fleet on a virtual clock: the real scheduler, router and admission, devices that take no time.

Reading order: `event_loop`, `randomness`, `device`, `request`, `exact_engine`, `aggregate_engine`,
`policies`, `gateway`, `traffic`, `faults`, `invariants`, `scenario`, `simulation`, `report`.
What it promises and what it leaves out: docs/concepts/simulator.md.
"""
