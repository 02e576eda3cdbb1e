"""Where a run is remembered: Postgres, or memory with the same promises."""
