-- Nothing that is under way was due before `live_since`, as of the latest sweep; `looked_at`: since when that holds for all rows. Sweeps and renewals
-- begin to look there: index entries of what has ended stay in front of it as long as anybody holds an old snapshot, and each look would
-- read them all. Code from before neither reads nor writes it.
ALTER TABLE flujo_sweeps
    ADD COLUMN live_since timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN looked_at  timestamptz NOT NULL DEFAULT '-infinity';
