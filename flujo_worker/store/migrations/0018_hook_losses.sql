-- Of the workers that a hook call was lost with, those that count against it: nothing else ran in the process that died. `alone`: the
-- worker that has the call now runs nothing else. From now on `tries` counts losses, where it counted how often the call was taken.
-- Older code continues to count there, and leaves the new columns unchanged.
ALTER TABLE flujo_hook_calls
    ADD COLUMN losses_alone integer NOT NULL DEFAULT 0,
    ADD COLUMN alone        boolean NOT NULL DEFAULT false;
