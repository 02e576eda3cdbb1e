-- Retries: a run that was forked from another one, and what each top-level step of a run began with. A context of null is the one that the
-- step before began with. Code from before writes no such rows: where one is missing, a retry from there is refused.

ALTER TABLE flujo_runs
    ADD COLUMN forked_from text,
    ADD COLUMN from_step   text;

CREATE TABLE flujo_contexts (
    run_id  text NOT NULL,
    place   integer NOT NULL,
    context bytea,
    PRIMARY KEY (run_id, place)
);
ALTER TABLE flujo_contexts ALTER COLUMN context SET STORAGE EXTERNAL;
