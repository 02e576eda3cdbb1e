      -- The open questions `a` of live runs `r` that match; nobody is asked for an event.
      a.question IS NOT NULL AND a.question ->> 'event' IS NULL AND a.ended_at IS NULL AND a.status = 'paused' AND a.available_at > now()
      AND r.status IN ('queued', 'running', 'parked') AND r.cancel_requested_at IS NULL AND (r.deadline_at IS NULL OR r.deadline_at > now())
      AND (%(step)s::text IS NULL OR a.step = %(step)s::text) AND
-- include matching
