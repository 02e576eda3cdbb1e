-- Give events to the steps that wait for them, in the run that they were sent to or in a child run that it waits for. Of each name the n-th event
-- goes to the n-th step that waits. A sender need not see a step that begins, nor wait for its transaction: what give_events.sql does not see, this
-- finds (ADR 58). Two of these at once make the same pairs; one of them holds both rows of a pair and changes them, the other goes on without
-- waiting. A step whose time is over still gets an event that is on record, until it has expired. What a run did not take before its end is closed.
WITH due AS (
    SELECT i.id, i.run_id, i.name, row_number() OVER (PARTITION BY i.run_id, i.name ORDER BY i.id) AS nth
    FROM flujo_inputs i JOIN flujo_runs r ON r.id = i.run_id
    WHERE i.kind = 'event' AND i.acted_at IS NULL AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL
),
late AS (
    UPDATE flujo_inputs i SET acted_at = now()
    WHERE i.kind = 'event' AND i.acted_at IS NULL AND (SELECT r.ended_at IS NULL FROM flujo_runs r WHERE r.id = i.run_id) IS NOT TRUE
),
-- include given_events
