SELECT id, canary FROM flujo_value_keys;
