-- The health check: runs by when they began, dropped events without a look at all the others, and one stored report for each slot of
-- time. The new column is null, and no row is rewritten; the indexes are built while writes to these tables wait.

CREATE INDEX flujo_runs_started ON flujo_runs (started_at DESC);
CREATE INDEX flujo_events_dropped ON flujo_events (at) WHERE name = 'events.dropped';

ALTER TABLE flujo_health_reports ADD COLUMN slot timestamptz;
CREATE UNIQUE INDEX flujo_health_reports_slot ON flujo_health_reports (slot);
