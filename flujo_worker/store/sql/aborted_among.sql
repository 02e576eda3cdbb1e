SELECT 1 FROM flujo_scopes WHERE run_id = %(run)s AND address = ANY(%(fan_outs)s::text[]) AND aborted LIMIT 1;
