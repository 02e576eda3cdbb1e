-- Each claim has an id that is drawn at random: a crash of Postgres may lose a claim, and the next one gets the same fence (ADR 10). What was
-- spent is stored once for each. Older code goes on identifying its claims by their time and their fence, and its spends have the zero id.
ALTER TABLE flujo_attempts ADD COLUMN claim_id uuid;
ALTER TABLE flujo_spends ADD COLUMN claim_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000';
CREATE UNIQUE INDEX flujo_spends_of_claims ON flujo_spends (key, fence, claimed_at, claim_id);
ALTER TABLE flujo_spends DROP CONSTRAINT flujo_spends_pkey;
ALTER TABLE flujo_spends ADD CONSTRAINT flujo_spends_pkey PRIMARY KEY USING INDEX flujo_spends_of_claims;
