SELECT address, parent, kind, step, name, place, status, cursor, version, output, NULL::bytea AS context, patch, lanes::text, error::text, metadata::text
FROM flujo_scopes WHERE run_id = %(run)s AND parent = %(address)s ORDER BY place;
