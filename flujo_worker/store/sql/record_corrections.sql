-- What the merged outcome of an attempt repaired: in the merge's transaction, and only when there is something (M-178).
INSERT INTO flujo_correction_ledger (run_id, attempt, fence, step_name, agent_id, provider_model, schema_hash,
                                     coercion_policy_version, stage, repair_depth, transforms_applied, latency_ms_saved)
SELECT %(run)s::text, %(key)s::text, %(fence)s::int, c.step, c.agent, c.model, c.schema, c.policy, c.stage, c.depth, c.transforms::jsonb, c.saved_ms
FROM unnest(
    %(correction_steps)s::text[], %(correction_agents)s::text[], %(correction_models)s::text[], %(correction_schemas)s::text[],
    %(correction_policies)s::text[], %(correction_stages)s::text[], %(correction_depths)s::int[], %(correction_transforms)s::text[],
    %(correction_saved_ms)s::float8[]
) AS c (step, agent, model, schema, policy, stage, depth, transforms, saved_ms);
