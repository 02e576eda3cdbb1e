-- The newest judgements of outputs: of one run and its child runs, or of the newest runs. Those of each run are found by the index on its events.
WITH looked AS MATERIALIZED (
    SELECT r.id, r.name FROM flujo_kin(%(run)s::text) k JOIN flujo_runs r ON r.id = k WHERE %(run)s::text IS NOT NULL
    UNION ALL
    (SELECT r.id, r.name FROM flujo_runs r WHERE %(run)s::text IS NULL ORDER BY r.created_at DESC LIMIT %(runs)s::int)
)
SELECT e.at, e.run_id AS run, l.name AS pipeline, a.address, a.step, a.number AS attempt,
       CASE WHEN e.name = 'step.judged' THEN e.data ->> 'judge' ELSE 'precheck' END AS judge,
       CASE WHEN jsonb_typeof(e.data -> 'score') = 'number' THEN (e.data -> 'score')::float8 END AS score,
       CASE WHEN e.name = 'step.judged' THEN (e.data ->> 'passed') = 'true' ELSE e.name = 'aros.reasoning.precheck.pass' END AS passed,
       e.data ->> 'feedback' AS feedback
FROM looked l JOIN flujo_events e ON e.run_id = l.id JOIN flujo_attempts a ON a.key = e.attempt
WHERE e.name IN ('step.judged', 'aros.reasoning.precheck.pass', 'aros.reasoning.precheck.fail') ORDER BY e.id DESC LIMIT %(limit)s::int;
