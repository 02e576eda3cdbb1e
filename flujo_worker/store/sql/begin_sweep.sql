-- Take the turn to sweep. Now and then look for the oldest that is under way: no look at it begins before that. What is committed later was due
-- no earlier than its transaction began; if that was long before, the next look finds it.
UPDATE flujo_sweeps
SET swept_at = now(), worker = %(worker)s,
    live_since = CASE WHEN looked_at < now() - interval '10 s'
        THEN (SELECT least(min(a.available_at), now() - interval '60 s') FROM flujo_attempts a WHERE a.ended_at IS NULL) ELSE live_since END,
    looked_at = CASE WHEN looked_at < now() - interval '10 s' THEN now() ELSE looked_at END
WHERE swept_at < now() - make_interval(secs => %(every_s)s)
RETURNING 1;
