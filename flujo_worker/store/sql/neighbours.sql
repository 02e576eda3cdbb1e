-- The registered worker processes of one host that have attempts. Their leases may be over, because a replacement may take longer to start.
SELECT w.id, w.pid FROM flujo_workers w
WHERE w.host = %(host)s AND w.ended_at IS NULL
  AND w.id IN (
      SELECT a.worker FROM flujo_attempts a
      WHERE a.ended_at IS NULL AND a.available_at >= (SELECT live_since FROM flujo_sweeps) AND a.status = 'running'
  );
