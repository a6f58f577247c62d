"""What starts, watches and stops replicas: local processes first.

A launcher knows no engine; an adapter opens no socket. Reading order: `protocol`, `process`,
`process_identity` (whose a process number is), `log_file`, `lifeline` (how all of it ends with its
supervisor).
"""
