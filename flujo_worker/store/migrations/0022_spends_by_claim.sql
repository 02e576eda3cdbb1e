-- A crash of Postgres may take a claim with it, and the next one gets the same fence (ADR 10). So the spend is stored once for each claim,
-- by the time at which it was made. Older code writes 0 and continues to work. Reads go on meanwhile, and writes wait for the index.
ALTER TABLE flujo_spends ADD COLUMN claimed_at bigint NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX flujo_spends_once ON flujo_spends (key, fence, claimed_at);
ALTER TABLE flujo_spends DROP CONSTRAINT flujo_spends_pkey;
ALTER TABLE flujo_spends ADD CONSTRAINT flujo_spends_pkey PRIMARY KEY USING INDEX flujo_spends_once;
