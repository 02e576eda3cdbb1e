s.name, s.reference, s.timing::text AS timing, s.tenant, s.overlap, s.catch_up, s.is_paused, s.slot_at, s.due_at, s.last_slot, s.last_run, s.last_error
