      NOT s.aborted
      AND EXISTS (SELECT 1 FROM flujo_scopes h WHERE h.run_id = s.run_id AND h.parent = s.address AND h.held AND h.status = 'open' OFFSET 0)
      AND NOT EXISTS (
          SELECT 1 FROM flujo_scopes o
          WHERE o.run_id = s.run_id AND o.parent = s.address AND o.status = 'open' AND o.lanes -> s.address <> to_jsonb(%(no_lane)s::int) OFFSET 0
      )
