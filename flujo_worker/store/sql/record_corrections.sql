-- What the merged outcome of an attempt repaired: in the merge's transaction, and only when there is something (M-178).
INSERT INTO flujo_correction_ledger (run_id, attempt, fence, step_name, agent_id, provider_model, schema_hash,
                                     coercion_policy_version, stage, repair_depth, transforms_applied, latency_ms_saved)
SELECT %(run)s::text, %(key)s::text, %(fence)s::int, c.step_name, c.agent_id, c.provider_model, c.schema_hash,
       c.policy_version, c.stage, c.repair_depth, c.transforms::jsonb, c.latency_ms_saved
FROM unnest(
    %(correction_step_name)s::text[], %(correction_agent_id)s::text[], %(correction_provider_model)s::text[], %(correction_schema_hash)s::text[],
    %(correction_policy_version)s::text[], %(correction_stage)s::text[], %(correction_repair_depth)s::int[],
    %(correction_transforms)s::text[], %(correction_latency_ms_saved)s::float8[]
) AS c (step_name, agent_id, provider_model, schema_hash, policy_version, stage, repair_depth, transforms, latency_ms_saved);
