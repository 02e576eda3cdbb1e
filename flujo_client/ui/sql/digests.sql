-- A digest for each of these runs, and for '' one of all: it changes when something happens there. Of all, what is due first is looked at.
SELECT q.run, md5(CASE q.run WHEN '' THEN concat_ws(
        ' ', (SELECT max(created_at) FROM flujo_runs), (SELECT max(id) FROM flujo_inputs), (SELECT max(changed_at) FROM flujo_model_guards),
        (SELECT sum(hashtext(id)) FROM flujo_workers WHERE ended_at IS NULL AND lease_until > now()),
        (SELECT sum(hashtext(concat(key, status, fence))) FROM (
            SELECT key, status, fence FROM flujo_attempts
            WHERE ended_at IS NULL AND available_at >= (SELECT live_since FROM flujo_sweeps) ORDER BY available_at LIMIT 2000) a))
    ELSE concat_ws(' ', (SELECT concat(status, cancel_requested_at, retried_as) FROM flujo_runs WHERE id = q.run),
        (SELECT concat(xid, '-', id) FROM flujo_events e WHERE e.run_id = q.run ORDER BY e.xid DESC, e.id DESC LIMIT 1),
        (SELECT sum(hashtext(concat(key, status, fence))) FROM flujo_kin(q.run) k JOIN flujo_attempts a ON a.run_id = k AND a.ended_at IS NULL))
    END) AS digest FROM unnest(%(runs)s::text[]) AS q (run);
