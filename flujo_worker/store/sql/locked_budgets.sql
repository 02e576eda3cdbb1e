WITH free AS (SELECT b.scope FROM flujo_budgets b WHERE b.scope = ANY(%(scopes)s::text[]) FOR UPDATE SKIP LOCKED)
SELECT b.scope FROM flujo_budgets b WHERE b.scope = ANY(%(scopes)s::text[]) AND NOT EXISTS (SELECT 1 FROM free f WHERE f.scope = b.scope);
