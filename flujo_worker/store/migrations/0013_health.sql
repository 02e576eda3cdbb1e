-- The health check: runs by when they began, dropped events without a look at all the others, and one stored report for each slot of
-- time, as it was written: `jsonb` would lose the order of its keys. No report has been stored yet; the new column is null, no row is
-- rewritten, and the indexes are built while writes to these tables wait.

CREATE INDEX flujo_runs_started ON flujo_runs (started_at DESC);
CREATE INDEX flujo_events_dropped ON flujo_events (at) WHERE name = 'events.dropped';

ALTER TABLE flujo_health_reports DROP COLUMN report, ADD COLUMN report json NOT NULL, ADD COLUMN slot timestamptz;
CREATE UNIQUE INDEX flujo_health_reports_slot ON flujo_health_reports (slot);
