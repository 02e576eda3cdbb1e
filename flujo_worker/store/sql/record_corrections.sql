-- The repairs of merged outcomes: in the transaction of the merge, and only if there are any. An outcome that this transaction has not
-- merged records nothing: another one has written the row of its attempt.
INSERT INTO flujo_correction_ledger (run_id, attempt, fence, step_name, agent_id, provider_model, schema_hash,
                                     coercion_policy_version, stage, repair_depth, transforms_applied, latency_ms_saved)
SELECT a.run_id, a.key, a.fence, c.step_name, c.agent_id, c.provider_model, c.schema_hash,
       c.policy_version, c.stage, c.repair_depth, c.transforms::jsonb, c.latency_ms_saved
FROM (
    SELECT unnest(%(correction_of)s::int[]) AS of, unnest(%(correction_step_name)s::text[]) AS step_name,
           unnest(%(correction_agent_id)s::text[]) AS agent_id, unnest(%(correction_provider_model)s::text[]) AS provider_model,
           unnest(%(correction_schema_hash)s::text[]) AS schema_hash, unnest(%(correction_policy_version)s::text[]) AS policy_version,
           unnest(%(correction_stage)s::text[]) AS stage, unnest(%(correction_repair_depth)s::int[]) AS repair_depth,
           unnest(%(correction_transforms)s::text[]) AS transforms, unnest(%(correction_latency_ms_saved)s::float8[]) AS latency_ms_saved
) c CROSS JOIN LATERAL (
    SELECT a.run_id, a.key, a.fence FROM flujo_attempts a
    WHERE a.key = (%(key)s::text[])[c.of] AND a.xmin = pg_current_xact_id()::xid LIMIT 1
) a;
