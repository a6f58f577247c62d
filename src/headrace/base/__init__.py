"""Clock, ids, money, loops and the root error; standard library only.

Reading order: `errors`, `clock`, `ids`, `money`, `loops`.
"""
