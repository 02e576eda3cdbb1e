-- The ids of a batch's requests. They are joined by themselves: for the planner a batch that was just made has no rows.
SELECT id FROM flujo_batch_requests WHERE batch = %(batch)s::uuid;
