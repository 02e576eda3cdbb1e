-- Choose the attempts that ask next for free places: the first that wait, at one limit or at all limits. An attempt that is sent goes to the end
-- of the line, because its queue may have no worker: if it has not asked after a while, the place is offered to the next one. Nothing is
-- granted here, so no lock is needed. Release only the permit under this fence: the attempt may have got another one, or wait in the line again.
WITH gone AS (DELETE FROM flujo_permits WHERE key = %(key)s::text AND fence = %(fence)s::int),
free AS (
    SELECT l.name, l.at_once - (
-- include permits_in_use
      AND p.name = l.name
    ) - (SELECT count(*) FROM flujo_permits o WHERE o.name = l.name AND o.fence IS NULL AND o.offered_at > now() - make_interval(secs => %(patience_s)s::float8)) AS places
    FROM flujo_limits l
    WHERE coalesce(l.name = %(name)s::text, true) AND EXISTS (SELECT 1 FROM flujo_permits p WHERE p.name = l.name AND p.fence IS NULL)
),
next AS (
    SELECT chosen.key FROM free CROSS JOIN LATERAL (
-- include permits_waiting
      AND p.name = free.name AND coalesce(p.offered_at <= now() - make_interval(secs => %(patience_s)s::float8), true)
    ORDER BY p.turn LIMIT greatest(free.places, 0) FOR UPDATE OF p SKIP LOCKED
    ) AS chosen
)
UPDATE flujo_permits p SET offered_at = now(), turn = DEFAULT
FROM next WHERE p.key = next.key RETURNING p.key;
