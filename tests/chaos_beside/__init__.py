"""The monkey of `flujo chaos` on other projects, each installed from wheels into an environment of its own.

A `side_*` module runs in its project's environment, so it imports that project, `steps`, psycopg and the standard library only.
"""
