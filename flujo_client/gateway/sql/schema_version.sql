SELECT coalesce(max(version), 0) AS version FROM flujo_schema_version;
