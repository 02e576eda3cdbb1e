-- Which code a run's steps were performed with, the latest last, and which one workers last had for its plan and for another; workers ask the same.
WITH performed AS (
    SELECT regexp_replace(a.address, '#[^/]+', '#0', 'g') AS place, a.step, (array_agg(a.code ORDER BY a.ended_at DESC))[1] AS code, max(a.ended_at) AS at
    FROM flujo_attempts a WHERE a.run_id = %(run)s::text AND a.code IS NOT NULL AND a.ended_at IS NOT NULL GROUP BY 1, 2
),
found AS (
    SELECT 'run' AS origin, place, step, code, at FROM performed
    UNION ALL
    SELECT 'old', s.path, '', s.code, NULL FROM flujo_step_code s JOIN flujo_runs r ON r.fingerprint = s.fingerprint WHERE r.id = %(run)s::text
    UNION ALL SELECT 'new', s.path, '', s.code, NULL FROM flujo_step_code s WHERE s.fingerprint = %(fingerprint)s::text
)
SELECT f.origin, f.place, f.step, c.parts, coalesce(c.texts, '{}') AS texts FROM found f JOIN flujo_code c ON c.digest = f.code
ORDER BY f.origin, f.at, f.place COLLATE "C";
