            r.ended_at IS NULL AND r.status <> 'parked' AND r.cancel_requested_at IS NULL AND (r.deadline_at IS NULL OR r.deadline_at > now())
