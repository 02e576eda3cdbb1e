    SELECT unnest(%(run_id)s::text[]) AS run_id, unnest(%(place)s::text[]) AS place, unnest(%(digest)s::bytea[]) AS digest, unnest(%(nth)s::int[]) AS nth,
           unnest(%(operation)s::text[]) AS operation, unnest(%(effect)s::text[]) AS effect, unnest(%(key)s::text[]) AS key,
           unnest(%(fence)s::int[]) AS fence, unnest(%(claim_id)s::uuid[]) AS claim_id, unnest(%(asked)s::bytea[]) AS asked
