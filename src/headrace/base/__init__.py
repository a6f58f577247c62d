"""Clock, ids, money, deadlines and the root error; standard library only.

Reading order: `errors`, `clock`, `deadline`, `ids`, `money`.
"""
