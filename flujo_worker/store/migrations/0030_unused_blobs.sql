-- Large values that nothing refers to any more: when the latest search for them began, up to which run it has marked what is in use, and up to
-- which blob it has deleted what is not. Null: that part of it is done. Code from before reads and writes none of this.
ALTER TABLE flujo_sweeps
    ADD COLUMN marking_since timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN marked_to     text,
    ADD COLUMN swept_to      text;
