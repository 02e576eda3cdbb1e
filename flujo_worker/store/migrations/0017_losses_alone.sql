-- Of the losses of an attempt, those that are its own: its process ended while the attempt ran alone, or a living process gave it up.
-- All others may be a neighbour's fault. `alone`: the present claim shares its process with nothing, so whoever finds it lost counts
-- it as its own. Code from before counts all losses in `losses` alone, as this code does, and leaves the new columns as they are.
ALTER TABLE flujo_attempts
    ADD COLUMN losses_alone integer NOT NULL DEFAULT 0,
    ADD COLUMN alone        boolean NOT NULL DEFAULT false;
