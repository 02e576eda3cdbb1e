DROP TABLE IF EXISTS flujo_chaos_effects, flujo_chaos_cancels;
