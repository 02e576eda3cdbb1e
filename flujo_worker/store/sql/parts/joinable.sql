      NOT EXISTS (SELECT 1 FROM flujo_scopes c WHERE c.run_id = s.run_id AND c.parent = s.address AND c.status = 'open' OFFSET 0)
      AND NOT EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.key = s.run_id || ':' || s.address || ':' || s.step || ':join' OFFSET 0)
      AND NOT EXISTS (
          SELECT 1 FROM flujo_runs k
          WHERE k.parent_run = s.run_id AND k.parent_address = s.address AND k.status IN ('queued', 'running', 'parked') OFFSET 0
      )
