-- Give the events that were sent to a run, or to those that wait for it, before a step began to wait for them: in the transaction of the merge that
-- lets the step wait, so that no reader sees the run paused for them. Like hand_over_events.sql it waits for no lock.
WITH RECURSIVE above (id) AS (
    SELECT %(run)s::text UNION ALL SELECT c.parent_run FROM above JOIN flujo_runs c ON c.id = above.id AND c.parent_address IS NOT NULL
),
due AS (
    SELECT i.id, i.run_id, i.name, row_number() OVER (PARTITION BY i.run_id, i.name ORDER BY i.id) AS nth
    FROM above JOIN flujo_inputs i ON i.run_id = above.id JOIN flujo_runs r ON r.id = i.run_id
    WHERE i.kind = 'event' AND i.acted_at IS NULL AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL
),
-- include given_events
