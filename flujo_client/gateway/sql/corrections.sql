SELECT id, timestamp, run_id, attempt, fence, step_name, agent_id, provider_model, schema_hash,
       coercion_policy_version AS policy_version, stage, repair_depth, transforms_applied AS transforms, latency_ms_saved
FROM flujo_correction_ledger WHERE run_id = %(run)s ORDER BY id;
