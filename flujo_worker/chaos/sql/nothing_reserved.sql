SELECT 'attempt ' || v.key || ' holds a reservation in ' || v.scope AS what
FROM flujo_reservations v JOIN flujo_runs r ON r.id = v.run_id WHERE r.metadata ->> 'chaos' = %(monkey)s AND v.held
UNION ALL SELECT 'budget ' || b.scope || ' has reserved ' || b.reserved_usd || ' USD and ' || b.reserved_tokens || ' tokens'
FROM flujo_budgets b JOIN flujo_runs r ON b.scope = 'run:' || (r.limits ->> 'run')
WHERE r.metadata ->> 'chaos' = %(monkey)s AND (b.reserved_usd, b.reserved_tokens) <> (0, 0)
UNION ALL SELECT 'run ' || p.run_id || ' holds a place in ' || p.gate FROM flujo_gate_places p JOIN flujo_runs r ON r.id = p.run_id
WHERE r.metadata ->> 'chaos' = %(monkey)s AND p.until IS NULL
UNION ALL SELECT 'run ' || w.run_id || ' waits for ' || w.gate FROM flujo_waiting_runs w JOIN flujo_runs r ON r.id = w.run_id
WHERE r.metadata ->> 'chaos' = %(monkey)s;
