-- The inputs of runs that fit into a line; neither long ones nor references to blobs.
SELECT id, input FROM flujo_runs WHERE id = ANY(%(runs)s::text[]) AND octet_length(input) BETWEEN 2 AND 4096 AND get_byte(input, 0) <> ascii('#');
