"""The stores of runs: Postgres, and memory with the same guarantees."""
