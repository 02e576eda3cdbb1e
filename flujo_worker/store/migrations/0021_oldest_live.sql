-- Nothing that is under way was due before `live_since`, as of the latest sweep; `looked_at`: since when that holds for all rows. Sweeps and renewals
-- begin to look there: index entries of what has ended stay in front of it while there is an old snapshot, and each query would read them
-- all. Older code neither reads nor writes it.
ALTER TABLE flujo_sweeps
    ADD COLUMN live_since timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN looked_at  timestamptz NOT NULL DEFAULT '-infinity';
