WITH sent AS (
    SELECT key FROM flujo_attempts WHERE key = ANY(%(keys)s::text[]) AND status = 'ready' AND fence = 0 ORDER BY key FOR UPDATE SKIP LOCKED
)
UPDATE flujo_attempts a
SET status = 'queued', sends = a.sends + 1, sent_at = now() - make_interval(secs => %(age_s)s::float8)
FROM sent WHERE a.key = sent.key;
