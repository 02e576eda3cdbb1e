-- Move the clock, and every lease with it: workers are alive in real time.
WITH moved AS (UPDATE flujo_clock.clock SET ahead = ahead + make_interval(secs => %(seconds)s::float8))
UPDATE flujo_workers SET lease_until = lease_until + make_interval(secs => %(seconds)s::float8) WHERE ended_at IS NULL
