-- `flujo status` shows which tenants are near their limit; most budgets are of runs. Writes wait while the index is built.
CREATE INDEX flujo_budgets_tenants ON flujo_budgets (scope) WHERE starts_with(scope, 'tenant:');
