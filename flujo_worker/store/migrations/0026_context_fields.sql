-- The fields that a context model had, whenever a worker first performed a step with it: so that a run whose context was written with other
-- fields is known. A few rows for each model. Older code writes none of them and continues to work.

CREATE TABLE flujo_context_fields (
    model      text NOT NULL,
    digest     text NOT NULL,
    fields     jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, digest)
);
