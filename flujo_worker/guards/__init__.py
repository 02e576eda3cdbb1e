"""The shared protection of called services: circuit breakers, rate limits and cached results, stored in Redis."""
