-- Take the turn to sweep, and record when the oldest live work was due: no query begins before that. Work that is committed later was due no earlier
-- than the beginning of its transaction; if that is longer ago than the margin of 2 s, the next full query finds it, twice a minute.
UPDATE flujo_sweeps s
SET swept_at = now(), worker = %(worker)s, looked_at = CASE WHEN s.looked_at < now() - interval '30 s' THEN now() ELSE s.looked_at END,
    live_since = least(now() - interval '2 s', (
        SELECT min(a.available_at) FROM flujo_attempts a
        WHERE a.ended_at IS NULL
          AND a.available_at >= CASE WHEN s.looked_at < now() - interval '30 s' THEN '-infinity' ELSE s.live_since END
    ))
WHERE s.swept_at < now() - make_interval(secs => %(every_s)s) RETURNING 1;
