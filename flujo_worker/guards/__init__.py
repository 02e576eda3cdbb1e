"""The shared protection of called services: circuit breakers and cached results, stored in Redis."""
