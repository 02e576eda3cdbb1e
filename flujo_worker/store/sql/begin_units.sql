-- Announce units before their calls: only under a live claim, and only those without an answer. A unit that another claim has begun and not
-- settled is taken over; that claim can no longer settle it.
INSERT INTO flujo_units AS u (run_id, place, digest, nth, operation, effect, key, fence, claim_id, asked, model)
SELECT q.run_id, q.place, q.digest, q.nth, q.operation, q.effect, q.key, q.fence, q.claim_id, q.asked, q.model
FROM (
-- include units
           , unnest(%(model)s::text[]) AS model
) q
WHERE (SELECT a.status = 'running' AND a.fence = q.fence AND a.claim_id = q.claim_id FROM flujo_attempts a WHERE a.key = q.key)
ON CONFLICT (run_id, place, digest, nth) DO UPDATE
SET key = excluded.key, fence = excluded.fence, claim_id = excluded.claim_id, tries = u.tries + (u.claim_id <> excluded.claim_id)::int, began_at = now()
WHERE u.settled_at IS NULL RETURNING u.run_id, u.place, u.digest, u.nth;
