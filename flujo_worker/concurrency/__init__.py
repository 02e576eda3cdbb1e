"""Event loops, threads and timers that steps and services run on, and the variables that follow a call."""
