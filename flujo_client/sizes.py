"""How large and how many: every fixed limit on what users give, in one place; `docs/reference/limits.md` is its table.

Limits that a project sets itself are in `flujo_client/config/models.py`. Nothing is ever cut to fit a limit: what is above one is refused.
"""

from typing import Final

MAX_STEPS: Final = 10_000
"""Steps of a pipeline that hold no others, those inside containers counted at each place where they are used."""
MAX_BRANCHES: Final = 10_000
"""Branches of one fan-out: of a parallel step or a router, or items of a parallel map."""
MAX_CONTAINERS: Final = 20
"""Containers around a step."""
MAX_PLAN_BYTES: Final = 16_777_216
"""JSON of a compiled pipeline, with the text of its blueprint."""
MAX_NESTING: Final = 200
"""Lists and mappings inside each other in a plan or in metadata; the JSON writer takes 254."""

MAX_NAME: Final = 120
"""Characters of the name of a step, a branch, a path or a state."""
MAX_PATH: Final = 1_000
"""Bytes of a step's path: the keys of a run's rows are made of it, and Postgres indexes them."""
MAX_QUEUE: Final = 120
"""Characters of the name of a step's queue."""
MAX_WORD: Final = 200
"""Characters of an idempotency key, a tenant, a run's queue, a pipeline's name or version, an event's name or id."""
MAX_REFERENCE: Final = 1_000
"""Characters of the reference that workers find a pipeline by; Postgres indexes it."""
MAX_RUN_ID: Final = 80
"""Characters of a run's id."""

MAX_METADATA_BYTES: Final = 1_048_576
"""JSON of a run's metadata."""
MAX_QUESTION: Final = 100_000
"""Characters of a question to a person."""
MAX_EVENTS: Final = 1_000
"""Events that were sent to a run and that no step has taken yet: each sweep looks at them."""

MAX_BLUEPRINT_BYTES: Final = 1_048_576
"""A blueprint's text, with all that it imports."""
MAX_BLUEPRINT_VALUES: Final = 50_000
"""Values in a blueprint, those that aliases repeat counted each time."""
MAX_BLUEPRINT_DEPTH: Final = 100
"""Lists and mappings inside each other in a blueprint."""

MAX_ERROR_WORD: Final = 300
"""Characters that are stored of an error's class, module and code, and of each text among its details."""
MAX_ERROR_DETAILS: Final = 16
"""Details that are stored of an error."""
MAX_REFUSED_ANSWER_BYTES: Final = 16_384
"""Bytes that are stored of a model's answer that was refused."""
MAX_ERROR_TEXT: Final = 10_000
"""Characters that are stored of each text of an error: its message, its feedback, its suggestion."""

MAX_TRACEBACK_FRAMES: Final = 30
"""Frames that are stored of each error's traceback, those that repeat counted once."""
MAX_TRACEBACK_ERRORS: Final = 12
"""Errors that are stored in a traceback: the error, those behind it, and the members of groups."""
MAX_TRACEBACK_BYTES: Final = 16_384
"""Bytes that are stored of a traceback."""

MAX_ANSWER_BYTES: Final = 33_554_432
"""Bytes that are read of a provider's HTTP response, decompressed."""

MAX_STEP_OUTPUT_BYTES: Final = 65_536
"""Bytes that are stored of what an attempt prints and logs."""

MAX_WAIT_S: Final = 316_224_000
"""Seconds that a run waits at most: ten years."""
