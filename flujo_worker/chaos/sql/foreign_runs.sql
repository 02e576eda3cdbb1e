SELECT count(*) AS runs FROM flujo_runs WHERE ended_at IS NULL AND NOT metadata ? 'chaos';
