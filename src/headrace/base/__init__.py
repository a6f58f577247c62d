"""Clock, ids, money and the root error; standard library only.

Reading order: `errors`, `clock`, `ids`, `money`.
"""
