-- The calls of durable attempts, each on record (ADR 53). Workers of schema 2 neither read nor write them.

CREATE TABLE flujo_units (
    run_id        text NOT NULL,
    place         text NOT NULL,
    digest        bytea NOT NULL,
    nth           integer NOT NULL,
    operation     text NOT NULL,
    effect        text CHECK (effect IN ('keyed', 'once')),
    key           text NOT NULL,
    fence         integer NOT NULL,
    claim_id      uuid NOT NULL,
    tries         integer NOT NULL DEFAULT 1,
    began_at      timestamptz NOT NULL DEFAULT now(),
    asked         bytea,
    settled_at    timestamptz,
    answer        bytea,
    input_tokens  bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    requests      integer NOT NULL DEFAULT 0,
    cost_usd      double precision NOT NULL DEFAULT 0,
    model         text,
    PRIMARY KEY (run_id, place, digest, nth)
) WITH (fillfactor = 80);
ALTER TABLE flujo_units ALTER COLUMN answer SET STORAGE EXTERNAL;

ALTER TABLE flujo_attempts ADD COLUMN units_from integer, ADD COLUMN pauses integer NOT NULL DEFAULT 0;
